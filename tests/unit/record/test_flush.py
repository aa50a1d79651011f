"""Whatever is flushed when, by however many recorders: the files hold each row of each table once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from history import BEGAN, MEMORY, MS, History
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from listed_source import ListedSource

from probe.arrays.arrow import table_of
from probe.derive.partition import Partition
from probe.errors import SilentError
from probe.record import fresh
from probe.record.archive import Archive
from probe.record.flush import Flushes
from probe.record.sources import Windowed
from probe.record.stored import NO_RANK, Names
from probe.snapshot.snapshot import Snapshot
from probe.snapshot.source import Rank, SilentRank
from probe.streams import CALLS, DEVICE, FORWARD, LOADS, OPERATORS, SPANS, STEPS, STREAMS
from probe.tables import TABLES
from probe.tables.declaration import DONE, STEP, Table

WATCHED = [table for table in TABLES if table.derive is not None and table.final in (STEP, DONE)]
(COLLECTIVE_TABLE,) = (table for table in TABLES if table.name == "probe.collectives")


def expected(job: Snapshot) -> dict[str, Counter[Any]]:
    found = {}
    for table in WATCHED:
        rows = [fresh.whole(table, piece) for rank in job.ranks for piece in fresh.pieces(table, Partition.of(rank))]
        found[table.name] = counted([_stored(table, each) for each in rows])
    assert COLLECTIVE_TABLE.derive_job is not None
    whole = table_of(COLLECTIVE_TABLE.columns, COLLECTIVE_TABLE.derive_job(job))
    return found | {COLLECTIVE_TABLE.name: counted([_stored(COLLECTIVE_TABLE, whole)])}


def _stored(table: Table, rows: Any) -> Any:
    return fresh.stored(table, rows, np.ones(len(rows), np.bool_))


def recorded(folder: Path) -> dict[str, Counter[Any]]:
    archive = Archive(folder)
    return {
        table.name: counted([pq.ParquetFile(each.path).read() for each in archive.files(table.name)[0]])
        for table in [*WATCHED, COLLECTIVE_TABLE]
    }


def counted(tables: Sequence[pa.Table]) -> Counter[Any]:
    return Counter(
        repr(row) for table in tables for row in table.drop_columns(_AGE & {*table.column_names}).to_pylist()
    )


_AGE = {"age_ms"}  # of what never ends, at the moment of the look
STEP_MS = st.one_of(st.integers(5, 60), st.integers(400, 3000))
END = st.one_of(st.integers(1, 300), st.integers(301, 2500))


@st.composite
def histories(draw: st.DrawFn) -> History:
    steps = draw(st.lists(STEP_MS, min_size=3, max_size=40))
    ends: list[int | None] = [draw(END) for _ in steps]
    if draw(st.booleans()):
        ends[-1] = None
    return History(steps, ends)


@pytest.mark.slow
@settings(max_examples=25, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(histories(), st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=12), st.integers(1, 20_000))
def test_every_row_is_in_the_files_once(history: History, flushes: list[tuple[int, bool]], after_ms: int) -> None:
    with TemporaryDirectory(dir=MEMORY) as name:
        folder, lost = Path(name) / "job=x", list[Any]()
        recorder = Flushes(folder, Names(), lambda *what: lost.append(what))
        length = history.until - BEGAN
        for part, is_killed in sorted(flushes):
            if is_killed:
                recorder = Flushes(folder, Names(), lambda *what: lost.append(what))
            recorder.flush(_seen(history, recorder, BEGAN + length * part // 40), (), stops=is_killed)
            recorder.merge()
        end = history.until + after_ms * MS
        recorder.flush(_seen(history, recorder, end), ("agent-0", "agent-1"), stops=True)
        assert recorded(Path(name)) == expected(history.at(end)) and lost == []


def _seen(history: History, recorder: Flushes, now: int) -> Snapshot:
    return Snapshot([Windowed(history.source(now), recorder.begin)])


def test_a_row_is_taken_once_it_is_final_and_no_window_begins_before_it_must(tmp_path: Path) -> None:
    history = History([100] * 600, [200] * 600)
    recorder = Flushes(tmp_path / "job=x", Names(), lambda *_: None)
    for second in range(8, 60, 8):
        job = _seen(history, recorder, BEGAN + second * 1000 * MS)
        recorder.flush(job, (), stops=False)
    (rank, _) = _seen(history, recorder, BEGAN + 56_000 * MS).ranks
    assert len(rank.rows(SPANS)) < 2 * 130 and len(rank.rows(STEPS)) < 200
    steps = {row["step"] for each in Archive(tmp_path).files("python.step_trace")[0]
             for row in pq.ParquetFile(each.path).read(["step"]).to_pylist()}  # fmt: skip
    assert steps == set(range(1, max(steps) + 1)) and 530 <= max(steps) <= 540
    assert NO_RANK in str(next(Archive(tmp_path).folders("probe.collectives")))


def test_rows_that_a_ring_has_overwritten_before_they_were_read_are_told_once(tmp_path: Path) -> None:
    history, lost = History([100] * 400, [200] * 400), list[tuple[int, str, int]]()
    recorder = Flushes(tmp_path / "job=x", Names(), lambda rank, stream, rows: lost.append((rank.rank, stream, rows)))
    for second, gap in ((10, 0), (20, 0), (30, 30_000), (38, 30_000)):
        source = history.source(BEGAN + second * 1000 * MS)
        for rank, tables in source.tables.items():
            spans = [row for row in tables[SPANS] if not gap or row[0] > BEGAN + 22_000 * MS]
            tables[SPANS] = spans = [[*row[:-1], row[-1] + gap] for row in spans]
            rank.last_seq = {SPANS: spans[-1][-1]}
        recorder.flush(Snapshot([Windowed(source, recorder.begin)]), (), stops=False)
    ring = 16384
    assert {(rank, stream) for rank, stream, _ in lost} == {(0, SPANS), (1, SPANS)} and len(lost) == 2
    (_, _, rows) = lost[0]
    assert 30_000 - ring < rows <= 30_000 + 600 - ring


class Counted(ListedSource):
    """others: of each stream that was read, how many ranks were read with it, or had rows of marks or batches yet."""

    others: dict[str, int]

    def rows(self, stream: str, since_ns: Any) -> Any:
        held = [rank for rank in self.tables if rank not in since_ns and rank.has_rows(LOADS)]
        self.others[stream] = max(self.others.get(stream, 0), len(since_ns) - 1 + len(held))
        return super().rows(stream, since_ns)


def test_the_rings_of_one_rank_are_held_at_a_time_but_for_its_steps(tmp_path: Path) -> None:
    recorder, listed = Flushes(tmp_path / "job=x", Names(), lambda *_: None), History([100] * 200, [200] * 200)
    for flush in (lambda job: recorder.flush(job, (), stops=False), recorder.moments):
        source = Counted(listed.source(listed.until).tables)
        source.others = {}
        flush(Snapshot([source]))
        assert SPANS in source.others and {stream for stream, ranks in source.others.items() if ranks} == {STEPS}


def test_deposits_that_a_ring_has_overwritten_before_they_were_written_are_told_once(tmp_path: Path) -> None:
    history, lost, ring = History([100] * 400, [200] * 400), list[tuple[int, str, int]](), 16384
    recorder = Flushes(tmp_path / "job=x", Names(), lambda rank, stream, rows: lost.append((rank.rank, stream, rows)))
    for second, last in ((10, 40_000), (18, 40_000), (26, 40_010), (34, 80_000), (38, 80_000)):
        source, whole = (_with_operators(history, BEGAN + second * 1000 * MS, last, ring) for _ in range(2))
        job = Snapshot([Windowed(source, recorder.begin)])
        recorder.flush(job, (), stops=False)
        recorder.deposits(lambda whole=whole: Snapshot([whole]), job, ())  # type: ignore[misc]
    assert lost == [(rank, OPERATORS, 80_000 - ring - 40_000) for rank in (0, 1)]


def _with_operators(history: History, now: int, last: int, ring: int) -> ListedSource:
    """last: the number of the last one."""
    source = history.source(now)
    for tables in source.tables.values():
        rows: dict[str, Any] = tables  # type: ignore[assignment]
        rows[OPERATORS] = np.zeros((min(last, ring), len(STREAMS[OPERATORS])), np.int64)
        rows[OPERATORS][:, -1] = np.arange(max(1, last - ring + 1), last + 1)
    return source


class Ending(ListedSource):
    """Its ranks are just ending: they do not answer, and nothing of theirs can be found any more."""

    def ranks(self) -> Sequence[Rank | SilentRank]:
        error = SilentError("It ends.")
        return [SilentRank(rank.rank, rank.pid, error, ListedSource({rank: {}})) for rank in self.tables]


def test_a_rank_that_ends_during_a_flush_is_read_from_the_memory_that_is_held(tmp_path: Path) -> None:
    history = History([100] * 100, [200] * 100)
    recorder = Flushes(tmp_path / "job=x", Names(), lambda *_: None)
    recorder.flush(_seen(history, recorder, BEGAN + 4000 * MS), (), stops=False)
    now = history.source(BEGAN + 8000 * MS)
    held = {rank.pid: ListedSource({rank: tables}) for rank, tables in now.tables.items()}
    recorder.flush(Snapshot([Windowed(Ending(now.tables), recorder.begin, held)]), (), stops=False)
    end = history.until + 50 * MS
    recorder.flush(_seen(history, recorder, end), ("agent-0", "agent-1"), stops=True)
    assert recorded(tmp_path) == expected(history.at(end))


def test_ranks_that_end_one_after_the_other_double_nothing(tmp_path: Path) -> None:
    history = History([100] * 100, [200] * 100)
    recorder = Flushes(tmp_path / "job=x", Names(), lambda *_: None)
    for second in (4, 8):
        recorder.flush(_seen(history, recorder, BEGAN + second * 1000 * MS), ("agent-0",), stops=False)
    last = {rank: tables for rank, tables in history.source(BEGAN + 9000 * MS).tables.items() if rank.rank == 1}
    recorder.flush(Snapshot([Windowed(ListedSource(last), recorder.begin)]), (), stops=False)
    files = Archive(tmp_path).files("probe.collectives")[0]
    numbers = [row["group_seq"] for each in files for row in pq.ParquetFile(each.path).read(["group_seq"]).to_pylist()]
    assert len(numbers) > 50 and len(numbers) == len({*numbers})


def test_operations_of_the_last_steps_know_of_a_rank_that_ended_before_the_others(tmp_path: Path) -> None:
    history = History([100] * 100, [200] * 100)
    recorder = Flushes(tmp_path / "job=x", Names(), lambda *_: None)
    recorder.flush(_seen(history, recorder, BEGAN + 4000 * MS), (), stops=False)
    recorder.flush(_seen(history, recorder, BEGAN + 13_000 * MS), ("agent-0",), stops=False)
    last = {rank: rows for rank, rows in history.source(BEGAN + 14_000 * MS).tables.items() if rank.rank == 1}
    recorder.flush(Snapshot([Windowed(ListedSource(last), recorder.begin)]), ("agent-1",), stops=True)
    name = COLLECTIVE_TABLE.name
    assert recorded(tmp_path)[name] == expected(history.at(BEGAN + 14_000 * MS))[name]


def test_samples_wait_for_the_number_of_their_step_ten_minutes_at_most(tmp_path: Path) -> None:
    history = History([30_000] * 40, [200] * 40)
    recorder = Flushes(tmp_path / "job=x", Names(), lambda *_: None)
    for second in (10, 40, 70, 100):
        job = _seen(history, recorder, BEGAN + second * 1000 * MS)
        for rank in job.ranks:
            known = {"step_base": 12_000, "step_source": "trainer"} if second == 100 else {"step_settled": False}
            rank.facts = rank.facts._replace(torch="2.13.0", **known)
        recorder.flush(job, (), stops=False)
        assert sampled(tmp_path) == ([*range(12_000, 12_004)] if second == 100 else [])


@pytest.mark.parametrize(("second", "stops"), [(610, False), (70, True)])
def test_samples_whose_step_has_no_number_yet_are_not_lost(tmp_path: Path, second: int, stops: bool) -> None:
    history = History([30_000] * 40, [200] * 40)
    recorder = Flushes(tmp_path / "job=x", Names(), lambda *_: None)
    job = _seen(history, recorder, BEGAN + second * 1000 * MS)
    for rank in job.ranks:
        rank.facts = rank.facts._replace(torch="2.13.0", step_settled=False)
    recorder.flush(job, (), stops)
    assert sampled(tmp_path) == [*range((second - 2) // 30 + 1)]


def test_a_call_that_began_before_the_window_of_steps_has_its_own_step_or_none(tmp_path: Path) -> None:
    history, long, short = History([100] * 600, [200] * 600), (5010, 50_010), (50_010, 50_020)
    recorder = Flushes(tmp_path / "job=x", Names(), lambda *_: None)
    for second in (20, 40, 59):
        source = history.source(BEGAN + second * 1000 * MS)
        for tables in source.tables.values():
            ended = [(BEGAN + start * MS, BEGAN + end * MS) for start, end in (long, short) if end < second * 1000]
            rows: dict[str, Any] = tables  # type: ignore[assignment]
            rows[CALLS] = [[start, end, 1, -1, -1, 7, 0, seq] for seq, (start, end) in enumerate(ended, start=1)]
        recorder.flush(Snapshot([Windowed(source, recorder.begin)]), (), stops=False)
    files = Archive(tmp_path).files("python.call_trace")[0]
    steps = [step for each in files for step in pq.ParquetFile(each.path).read(["step"])["step"].to_pylist()]
    assert steps == [None, 500] * 2


def test_a_rank_with_timed_calls_that_has_ended_no_step_yet_holds_nothing_up(tmp_path: Path) -> None:
    source = History([100] * 100, [200] * 100).source(BEGAN + 9000 * MS)
    recorder = Flushes(tmp_path / "job=x", Names(), lambda *_: None)
    (other,) = (rank for rank in source.tables if rank.rank == 1)
    other.facts = other.facts._replace(anchor=None)
    rows: dict[str, Any] = source.tables[other]  # type: ignore[assignment]
    rows[STEPS], rows[DEVICE] = [], [[BEGAN, BEGAN + MS, BEGAN, 7, 0, -1, -1, -1, -1, FORWARD, 1]]
    recorder.flush(Snapshot([Windowed(source, recorder.begin)]), (), stops=False)
    assert Archive(tmp_path).files("python.step_trace")[0]


def sampled(folder: Path) -> list[int]:
    """The steps of the samples that are in the files."""
    files = Archive(folder).files("host.process_trace")[0]
    return sorted({step for each in files for step in pq.ParquetFile(each.path).read(["step"])["step"].to_pylist()})


def test_where_a_rank_ends_before_steps_have_their_numbers_operations_wait_for_them(tmp_path: Path) -> None:
    history = History([100] * 20, [200] * 20)
    recorder = Flushes(tmp_path / "job=x", Names(), lambda *_: None)
    job = _seen(history, recorder, BEGAN + 9000 * MS)
    for rank in job.ranks:
        rank.facts = rank.facts._replace(step_settled=False)
    recorder.flush(job, ("agent-0",), stops=False)
    assert not Archive(tmp_path).files(COLLECTIVE_TABLE.name)[0]


def test_what_is_of_all_ranks_waits_for_one_that_could_not_be_read(tmp_path: Path) -> None:
    history = History([100] * 100, [200] * 100)
    recorder = Flushes(tmp_path / "job=x", Names(), lambda *_: None)
    one = {rank: tables for rank, tables in history.source(BEGAN + 8000 * MS).tables.items() if rank.rank == 0}
    job = Snapshot([Windowed(ListedSource(one), recorder.begin)])
    recorder.flush(job, (), stops=False, agents=("agent-0", "agent-1"))
    assert not Archive(tmp_path).files("probe.collectives")[0] and Archive(tmp_path).files("python.step_trace")[0]
    end = history.until + 50 * MS
    recorder.flush(_seen(history, recorder, end), ("agent-0", "agent-1"), stops=True)
    assert recorded(tmp_path) == expected(history.at(end))
