"""A history that is derived in blocks of steps has the rows that it has as a whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

torch = pytest.importorskip("torch")

from listed_source import listed  # noqa: E402
from naps import MS, Clock, napping  # noqa: E402
from tapped import tapped  # noqa: E402
from zoo import ZOO  # noqa: E402

from probe.arrays.arrow import table_of  # noqa: E402
from probe.derive.partition import Partition  # noqa: E402
from probe.query import step_blocks  # noqa: E402
from probe.query.duckdb_session import Worker  # noqa: E402
from probe.query.lazy_columns import derived_each, derived_in_parts, identified  # noqa: E402
from probe.snapshot.source import Rank  # noqa: E402
from probe.streams import DEVICE, ENGINE, EVAL, FORWARD, MARKS, SAMPLED, SPANS, STEPS, WAIT  # noqa: E402
from probe.tables.python.torch_trace import TABLE  # noqa: E402

pytestmark = pytest.mark.slow

assert TABLE.derive is not None
derive: Callable[[Partition], Any] = TABLE.derive


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_blocks, "ROWS_A_BLOCK", 30)
    monkeypatch.setattr(step_blocks, "LOOKED_UP_TOGETHER", 4)
    monkeypatch.setattr(step_blocks, "MAX_COPIES", 100)


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


def history(name: str, steps: int) -> tuple[Rank, list[int]]:
    """What the taps record of it, and when its steps end."""
    clock, ends = Clock(), []
    with napping(clock), tapped() as taps:
        _, run = ZOO[name]()
        for _ in range(steps):
            run()
            ends.append(clock.now)
        run()  # a step that has only begun
        found = taps.raw()
        for stream in TABLE.streams:
            found.put(stream, found.rows(stream).table.copy())
        return found, ends


def of_rank(one: Rank, ends: list[int], more: list[tuple[int, ...]], first: int = 1) -> Rank:
    """With more spans, and numbers from `first` on."""
    raw = Rank(one.pid, one.facts._replace(monotonic_ns=ends[-1] + MS, wall_ns=10**18), {}, one.log)
    spans = np.concatenate([one.rows(SPANS).table, np.array([(*each, 0) for each in more], np.int64).reshape(-1, 6)])
    spans = spans[np.lexsort((-spans[:, 0], spans[:, 1]))]
    steps = np.array([[end, count, -1, 0, 0, 0, 7, SAMPLED, 0] for count, end in enumerate(ends)], np.int64)
    for stream, table in {SPANS: spans, MARKS: one.rows(MARKS).table.copy(), STEPS: steps}.items():
        table[:, -1] = np.arange(len(table)) + (first if stream != STEPS else 1)
        raw.put(stream, table)
    raw.put(DEVICE, one.rows(DEVICE).table)
    listed({raw: {}})
    return raw


def rows(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def check(raw: Rank, worker: Worker) -> None:
    whole = Partition.of(raw)
    blocks = step_blocks.blocks_of(whole)
    assert blocks is not None and len(blocks) > 2
    made = derived_in_parts([partial(derived_each, [block], derive) for block in blocks], worker)
    made.have(TABLE.columns)
    found = pa.table({column.name: made.joined(column) for column in TABLE.columns})
    assert rows(found) == rows(table_of(TABLE.columns, identified(whole, derive(whole))))
    assert found["step"].to_pylist() == made.steps.tolist()


@pytest.mark.parametrize("name", ZOO)
def test_a_training_of_each_kind(name: str, worker: Worker) -> None:
    one, ends = history(name, 16)
    check(of_rank(one, ends, []), worker)
    check(of_rank(one, ends, [], first=1000), worker)  # the oldest rows are lost


@pytest.mark.parametrize("seed", range(16))
def test_what_runs_across_the_ends_of_steps(seed: int, worker: Worker) -> None:
    """A call around some steps after another; evals, passes and waits around parts of them, some on other threads."""
    chance = random.Random(seed)
    one, ends = history(chance.choice(list(ZOO)), 20)
    while ends[-1] < 20 * MS:  # of steps that take no time
        one, ends = history(chance.choice(list(ZOO)), 20)
    thread, more, at = int(one.rows(SPANS)["thread"][0]), list[tuple[int, ...]](), -1
    one.log.modules[9001] = {"name": "trainer", "type": "Trainer", "parent": 0, "root": 9001}
    trainer = chance.random() < 0.5
    while trainer and at < len(ends) - 1:
        last = min(len(ends) - 1, at + chance.randint(1, 4))
        more.append((1 if at < 0 else ends[at] + 1, ends[last], 9001, thread, FORWARD))
        at = last
    for kind in (EVAL, ENGINE, WAIT, EVAL, ENGINE, WAIT):
        begin = chance.randrange(len(ends) - 1)
        end = min(len(ends) - 1, begin + (0 if kind == ENGINE else chance.randint(1, 4)))
        start, stop = ends[begin] + chance.choice((-MS // 3, -1, 0, 1)), ends[end] + chance.choice((2, MS // 3))
        more.append((start, stop, 0, thread if chance.random() < 0.5 else 99, kind))
    more = [each for place, each in enumerate(more) if not _crosses(each, more[:place], one)]
    check(of_rank(one, ends, more), worker)


def _crosses(span: tuple[int, ...], others: list[tuple[int, ...]], one: Rank) -> bool:
    """Whether it would overlap one of its thread without being in it or around it: no program does that."""
    rows = one.rows(SPANS)
    there = [*others, *zip(*(rows[slot].tolist() for slot in ("start_ns", "end_ns", "subject", "thread")), strict=True)]
    return any(
        other[3] == span[3] and (other[0] < span[0] < other[1] < span[1] or span[0] < other[0] < span[1] < other[1])
        for other in there
    )


def test_a_call_around_everything_is_derived_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_blocks, "MAX_COPIES", 2)
    one, ends = history("chain", 16)
    thread = int(one.rows(SPANS)["thread"][0])
    assert step_blocks.blocks_of(Partition.of(of_rank(one, ends, []))) is not None
    around = of_rank(one, ends, [(0, ends[-1] + MS, 1, thread, FORWARD)])
    assert step_blocks.blocks_of(Partition.of(around)) is None


def test_what_fails_in_a_block_fails_here(worker: Worker) -> None:
    one, ends = history("chain", 16)
    seen: list[Partition] = []

    def fails(part: Partition) -> Any:
        seen.append(part)
        if len(seen) == 2:
            raise MemoryError
        return derive(part)

    blocks = step_blocks.blocks_of(Partition.of(of_rank(one, ends, [])))
    assert blocks is not None
    made = derived_in_parts([partial(derived_each, [block], fails) for block in blocks], worker)
    with pytest.raises(MemoryError):
        made.have(TABLE.columns)


def test_the_worker_does_its_part_and_order_is_kept(worker: Worker) -> None:
    import threading

    both = threading.Barrier(2, timeout=10)

    def work(part: int) -> tuple[int, int]:
        if part < 2:
            both.wait()
        return part, threading.get_ident()

    done: list[tuple[int, int]] = worker.share(work, range(9))
    assert [part for part, _ in done] == list(range(9)) and len({thread for _, thread in done}) == 2
