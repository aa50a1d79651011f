"""Traces for Perfetto, opened in its own trace processor: every row is there, where and when it was."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_agent import LINEAR, FakeAgent, resolved
from trace_processor import answers

from probe.connection import Connection
from probe.errors import UsageError
from probe.export.perfetto import Exported, export
from probe.streams import LOG_GROUP, RSS_BYTES, THREADS

pytestmark = pytest.mark.slow

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
MS = 1_000_000
ROWS = {
    "python.step_trace": "steps", "python.phase_trace": "phases", "python.torch_trace": "modules",
    "python.dataloader_trace": "loaders", "python.iterator_trace": "loaders", "python.nccl_trace": "collectives",
}  # fmt: skip
QUERIES = {
    "errors": "SELECT name, value FROM stats WHERE severity <> 'info' AND value > 0",
    "counts": "SELECT category, COUNT(*) AS n FROM slice GROUP BY 1",
    "values": "SELECT COUNT(*) AS n FROM counter",
    "rss": "SELECT COUNT(*) AS n, MIN(value) AS mb FROM counter JOIN counter_track t ON track_id = t.id "
    "WHERE t.name = 'rss_mb'",
    "calls": "SELECT s.name AS name, p.name AS parent, t.name AS track, g.name AS rank, COUNT(*) AS n FROM slice s "
    "LEFT JOIN slice p ON s.parent_id = p.id JOIN track t ON s.track_id = t.id JOIN track g ON t.parent_id = g.id "
    "WHERE s.category = 'modules' AND s.name LIKE 'linear%' GROUP BY 1, 2, 3, 4 ORDER BY rank, name",
    "arrows": "SELECT o.name AS source, i.name AS target, i.ts - o.ts AS lag_ns, o.dur AS length, "
    "ot.parent_id AS of_source, it.parent_id AS of_target FROM flow JOIN slice o ON slice_out = o.id "
    "JOIN slice i ON slice_in = i.id JOIN track ot ON o.track_id = ot.id JOIN track it ON i.track_id = it.id",
    "utc": "SELECT ts, to_realtime(ts) AS utc FROM slice WHERE name = 'step 2'",
    "arguments": "SELECT DISTINCT category, key, display_value AS value FROM slice JOIN args USING (arg_set_id) "
    "WHERE category IN ('collectives', 'loaders')",
}


def rank_of_two(make: Make, rank: int, behind: int, first: int, ahead_ns: int) -> FakeAgent:
    """Steps of 1 s from `first` on, with a batch and an all_reduce each, that rank 1 begins 5 ms after rank 0.

    behind: how far its host's monotonic clock is behind; if it were behind by more than this machine is up, its times
    would be negative.  ahead_ns: by which the wall clocks are ahead of this machine's monotonic one.
    """
    agent = make(rank, world_size=2, host=f"host-{rank}")

    def now() -> dict[str, Any]:
        now_ns = time.monotonic_ns()
        return {**agent.facts, "monotonic_ns": now_ns - behind, "wall_ns": now_ns + ahead_ns}

    agent.now = now  # type: ignore[method-assign]
    agent.name_modules()
    agent.put(LOG_GROUP, 1, name="0", backend="gloo", size=2, rank=rank, ranks=[0, 1])
    at = first - behind
    for _ in range(4):
        agent.load(at + 910 * MS, at + 950 * MS, ready=2)
        issued = at + 320 * MS + rank * 5 * MS
        agent.operate(issued, issued + MS, at + 340 * MS)
        agent.sample(at, (RSS_BYTES, 5 << 20), (THREADS, 3))
        at = agent.train(1, at, unit=MS)
    return agent


@dataclass(frozen=True)
class Trace:
    """What export() told of a job of two ranks, what its tables had, and what the trace processor finds."""

    done: Exported
    tables: dict[str, int]
    found: dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    with tempfile.TemporaryDirectory(prefix="probe-test-") as folder, ExitStack() as stack:
        first, ahead_ns = time.monotonic_ns() - 10_000 * MS, time.time_ns() - time.monotonic_ns()

        def make(rank: int, **facts: Any) -> FakeAgent:
            made = FakeAgent(Path(folder), rank, **facts)
            stack.callback(made.close)
            return made

        agents = [rank_of_two(make, rank, rank * -3_600_000 * MS, first, ahead_ns) for rank in (0, 1)]
        job = stack.enter_context(Connection(resolved(*agents), 5.0))
        file = tmp_path_factory.mktemp("trace") / "trace"
        done = export(job, str(file))
        tables = {name: len(job.query(f"SELECT step FROM {name}")) for name in (*ROWS, "probe.collectives")}
    found = answers(file, *QUERIES.values())
    yield Trace(done, tables, dict(zip(QUERIES, found, strict=True)))


def test_the_trace_processor_finds_no_error(trace: Trace) -> None:
    assert trace.found["errors"] == []


def test_every_row_is_a_slice_or_has_its_values_on_counters(trace: Trace) -> None:
    rows, left_out = Counter[str](), {each.kind: each.left_out for each in trace.done.kinds if each.left_out}
    for name, kind in ROWS.items():
        rows[kind] += trace.tables[name]
    assert left_out == {"steps": 2}  # those of the attach
    assert {row["category"]: row["n"] for row in trace.found["counts"]} == rows - Counter(left_out)
    assert {each.kind: each.slices for each in trace.done.kinds if each.slices} == rows - Counter(left_out)
    assert trace.done.slices == sum(rows.values()) - 2 and min(rows.values()) >= 6 and trace.done.ranks == [0, 1]
    assert trace.found["values"] == [{"n": sum(each.values for each in trace.done.kinds)}]
    assert trace.found["rss"] == [{"n": 8, "mb": 5.0}]


def test_module_calls_lie_within_each_other_on_the_thread_of_their_rank(trace: Trace) -> None:
    found = trace.found["calls"]
    assert {row["track"] for row in found} == {"thread 4242"}
    assert [row["rank"].partition(" (")[0] for row in found] == ["rank 0", "rank 0", "rank 1", "rank 1"]
    assert [(row["name"], row["parent"]) for row in found[:2]] == [
        ("linear", "Model"), ("linear (backward)", "Model (backward)")
    ]  # fmt: skip


def test_an_arrow_leads_from_rank_to_rank_on_one_clock(trace: Trace) -> None:
    arrows = trace.found["arrows"]
    assert len(arrows) == trace.tables["probe.collectives"] >= 3
    for arrow in arrows:
        assert arrow["source"] == arrow["target"] == "all_reduce" and arrow["length"] == 20 * MS
        assert arrow["of_source"] != arrow["of_target"]
        assert arrow["lag_ns"] == 5 * MS


def test_times_are_utc(trace: Trace) -> None:
    for row in trace.found["utc"]:
        assert row["ts"] == row["utc"] and abs(row["ts"] - time.time_ns()) < 600_000 * MS


def test_arguments_are_there_only_where_they_have_a_value(trace: Trace) -> None:
    values = {(row["category"], row["key"]): row["value"] for row in trace.found["arguments"]}
    assert values["collectives", "debug.bytes"] == "64" and values["collectives", "debug.state"] == "done"
    assert values["loaders", "debug.ready"] == "2" and ("loaders", "debug.outstanding") not in values
    assert ("collectives", "debug.peer") not in values and float(values["collectives", "debug.busbw_gbps"]) > 0


@pytest.fixture
def one(agent: Make) -> FakeAgent:
    rank = agent()
    rank.name_modules()
    return rank


def exported(job: Connection, folder: Path, *queries: str, steps: tuple[int, int] | None = None) -> tuple[Any, ...]:
    """What export() told, and what each query finds in the trace."""
    done = export(job, str(folder / "trace"), steps)
    assert (folder / "trace").stat().st_size == done.bytes
    errors, *found = answers(folder / "trace", QUERIES["errors"], *queries)
    assert errors == []
    return done, *found


def test_only_the_chosen_steps_are_there_and_calls_that_overlap_in_part(
    one: FakeAgent, connected: Connect, tmp_path: Path
) -> None:
    at = one.train(2)
    one.span(at + 10, at + 50, LINEAR)
    one.span(at + 30, at + 90, LINEAR)
    one.train(3, at)
    _, steps, overlapping = exported(
        connected(one), tmp_path, "SELECT DISTINCT display_value AS step FROM args WHERE key = 'debug.step' ORDER BY 1",
        "SELECT dur AS length FROM slice WHERE name = 'linear' AND dur IN (40, 60) ORDER BY 1", steps=(1, 2),
    )  # fmt: skip
    assert steps == [{"step": "1"}, {"step": "2"}]
    assert overlapping == [{"length": 40}, {"length": 60}]


def test_an_operation_in_flight_lasts_to_the_end(one: FakeAgent, connected: Connect, tmp_path: Path) -> None:
    end = one.train(3, unit=MS)
    one.operate(end - 50 * MS, end - 49 * MS, 0)
    done, (found,), (last,) = exported(
        connected(one), tmp_path, "SELECT name, ts + dur AS until FROM slice WHERE category = 'collectives'",
        "SELECT MAX(ts + dur) AS until FROM slice",
    )  # fmt: skip
    assert found == {"name": "all_reduce (in flight)", **last}
    assert next(each for each in done.kinds if each.kind == "collectives").left_out == 0


def test_what_cannot_be_written_is_refused(one: FakeAgent, connected: Connect, tmp_path: Path) -> None:
    one.train(3)
    job = connected(one)
    with pytest.raises(UsageError, match=r"Cannot write .*: Is a directory\."):
        export(job, str(tmp_path))
    with pytest.raises(UsageError, match="no rows of such steps"):
        export(job, str(tmp_path / "trace"), (1000, 1001))
    assert not (tmp_path / "trace").exists()


def test_without_the_package_the_error_says_how_to_install_it(
    one: FakeAgent, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)
    with pytest.raises(UsageError, match="needs the package perfetto") as caught:
        export(connected(one), "trace")
    assert (caught.value.code, caught.value.hint) == ("needs-package", "Run: pip install perfetto")
