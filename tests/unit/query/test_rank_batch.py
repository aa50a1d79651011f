"""Ranks that are derived as one have the rows that each of them has by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from listed_source import listed  # noqa: E402
from naps import MS, Clock, napping  # noqa: E402
from on_a_device import on_a_device  # noqa: E402
from played_cuda import to_cuda  # noqa: E402
from tapped import tapped  # noqa: E402
from zoo import ZOO  # noqa: E402

from probe.arrays.arrow import table_of  # noqa: E402
from probe.arrays.integers import Ints  # noqa: E402
from probe.derive.partition import Partition  # noqa: E402
from probe.host.facts import Facts  # noqa: E402
from probe.query.duckdb_session import Worker  # noqa: E402
from probe.query.lazy_columns import LazyColumns, derived_in_parts, identified  # noqa: E402
from probe.query.rank_batch import batches_of, derived_together  # noqa: E402
from probe.snapshot.log import Log  # noqa: E402
from probe.snapshot.snapshot import Snapshot  # noqa: E402
from probe.snapshot.source import Rank  # noqa: E402
from probe.streams import BEGIN, DEVICE, END, ENGINE, FORWARD, MARKS, SAMPLED, SPANS, STEPS  # noqa: E402
from probe.tables.python.torch_trace import TABLE  # noqa: E402

pytestmark = pytest.mark.slow

STREAMS = TABLE.streams
assert TABLE.derive is not None
derive: Callable[[Partition], Any] = TABLE.derive


def job(one: Rank, ends: list[int], ranks: int) -> Snapshot:
    """Ranks that did the same at other times, on hosts with other clocks, with steps of other numbers."""
    tables = {stream: one.rows(stream).table for stream in STREAMS}
    steps = np.array([[end, count, -1, 0, 0, 0, 7, SAMPLED, count + 1] for count, end in enumerate(ends)], np.int64)
    raws = []
    for rank in range(ranks):
        shift = (rank % 3) * 10**12 + rank * 77
        facts = one.facts._replace(rank=rank, host=f"host{rank % 2}", step_base=rank % 2,
                        monotonic_ns=ends[-1] + shift + MS, wall_ns=10**18 + rank)  # fmt: skip
        raws.append(Rank(one.pid + rank, facts, {}, one.log))

        def moved(table: Ints, slots: tuple[str, ...], shift: int = shift) -> Ints:
            made = table.copy()
            for place, slot in enumerate(slots):
                made[:, place] += shift * slot.endswith("_ns")
            return made

        for stream, table in {**tables, STEPS: steps}.items():
            raws[-1].put(stream, moved(table, raws[-1].slots(stream)))
    return listed({raw: {} for raw in raws})


def rows(values: Any) -> list[str]:
    return sorted(map(repr, table_of(TABLE.columns, values).to_pylist()))


def batches(ranks: list[Rank]) -> list[list[Rank]]:
    found = batches_of(list(map(Partition.of, ranks)), STREAMS)
    return [[part.rank for part in batch] for batch in found]


def check(job: Snapshot) -> None:
    parts = list(map(Partition.of, job.ranks))
    alone = [rows(identified(part, derive(part))) for part in parts]
    assert batches(job.ranks) == [job.ranks]
    worker = Worker()
    together = derived_in_parts([partial(derived_together, parts, STREAMS, derive)], worker)
    worker.close()
    assert all(alone)
    assert [rows_of(together, rank.rank) for rank in job.ranks] == alone
    assert rows_of(together) == sorted(row for each in alone for row in each)


def rows_of(piece: LazyColumns, rank: int | None = None) -> list[str]:
    """Of all ranks, or of one."""
    columns = {column.name: [value for chunk in piece.chunks(column) for value in chunk.to_pylist()]
               for column in TABLE.columns}  # fmt: skip
    found = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return sorted(repr(row) for row in found if rank is None or row["rank"] == rank)


@pytest.mark.parametrize("name", ZOO)
def test_on_the_cpu(name: str) -> None:
    clock = Clock()
    with napping(clock), tapped() as taps:
        _, run = ZOO[name]()
        ends = []
        for _ in range(3):
            run()
            ends.append(clock.now)
        run()  # a step that has only begun
        check(job(taps.raw(), ends, 5))


@pytest.mark.parametrize("name", ZOO)
def test_on_a_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch.utils.checkpoint._allowed_determinism_checks_to_fns, "default", lambda tensor: None)
    with on_a_device() as (played, taps):
        model, run = ZOO[name]()
        to_cuda(model)
        run()
        taps.modules.name()
        taps.device.switch(SAMPLED)
        ends = [played.clock.now]
        for _ in range(2):
            run()
            ends.append(played.clock.now)
        played.catch_up()
        taps.device.drain()
        raw = taps.raw()
        check(job(raw, ends, 4))
        ranks = job(raw, ends, 10)
        for rank in range(1, 10, 2):
            ranks.ranks[rank].rows(DEVICE)["device"][:] += 1
        assert batches(ranks.ranks) == [ranks.ranks[::2], ranks.ranks[1::2]]


def test_what_one_rank_did_last_is_nothing_to_the_next_ones_first_pass() -> None:
    """A pass without a module, after a step without any; behind it calls that have no pass yet."""
    log = Log()
    log.modules[1001] = {"name": "Model", "type": "Model", "parent": 0, "root": 1001}
    one = Rank(1, Facts(), {}, log)
    spans = [[30, 40, 0, 7, ENGINE, 1], [70, 80, 1001, 7, FORWARD, 2], [81, 90, 1001, 7, FORWARD, 3]]
    listed({one: {SPANS: spans}})
    check(job(one, [20, 60], 4))


def test_a_rank_that_calls_a_module_from_elsewhere_changes_nothing_of_the_others() -> None:
    """In the third one the outer block has no part in the inner one, which is called before it."""
    log = Log()
    for serial, name in ((1001, "Model"), (1002, "outer"), (1003, "inner")):
        log.modules[serial] = {"name": name, "type": "Module", "parent": 0, "root": 1001}

    def tables(inner: tuple[int, int], outer: tuple[int, int], order: str) -> dict[str, Ints]:
        spans, marks = [], []
        for at in (0, 1000, 2000):
            calls = sorted([(*inner, 1003, FORWARD), (*outer, 1002, FORWARD)], key=lambda call: call[1])
            spans += [(at + start, at + end, serial, 7, kind) for start, end, serial, kind in calls]
            spans += [(at + 100, at + 190, 1001, 7, FORWARD), (at + 200, at + 290, 0, 7, ENGINE)]
            modules = {"o": 1002, "i": 1003}
            marks += [(at + 205, 1001, 7, BEGIN)]
            marks += [(at + 210 + 10 * place, modules[each.lower()], 7, BEGIN if each.isupper() else END)
                      for place, each in enumerate(order)]  # fmt: skip
        return {stream: np.array([(*row, number + 1) for number, row in enumerate(rows)], np.int64)
                for stream, rows in ((SPANS, spans), (MARKS, marks))}  # fmt: skip

    one = Rank(1, Facts(), {}, log)
    usual, other = tables((115, 130), (110, 140), "OIio"), tables((110, 120), (130, 140), "OoIi")
    listed({one: usual})
    ranks = job(one, [900, 1900, 2900], 5)
    for stream, table in other.items():
        rows = ranks.ranks[2].rows(stream)
        moved = [place for place, slot in enumerate(rows.slots) if slot.endswith("_ns")]
        shift = rows.table[0, moved[0]] - usual[stream][0, moved[0]]
        table[:, moved] += shift
        ranks.ranks[2].put(stream, table)
    check(ranks)


def test_who_is_not_like_the_others_stays_alone() -> None:
    with napping(Clock()), tapped() as taps:
        _, run = ZOO["chain"]()
        run()
        ranks = job(taps.raw(), [taps.raw().rows(STREAMS[0]).table[:, 1].max()], 9)
    others, far = ranks.ranks[3], ranks.ranks[5]
    others.log = type(others.log)()
    others.log.modules.update({serial: dict(module) for serial, module in far.log.modules.items()})
    far.rows(STREAMS[0]).table[0, 0] -= 1 << 60
    (members,) = batches(ranks.ranks)
    assert members == [raw for raw in ranks.ranks if raw not in (others, far)]
    assert batches(ranks.ranks[:3]) == []
