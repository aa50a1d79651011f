"""Whatever is flushed when, by however many recorders: the files hold each row of each table once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from listed_source import ListedSource

from probe.arrays.arrow import table_of
from probe.derive.partition import Partition
from probe.host.facts import Facts
from probe.record import fresh
from probe.record.archive import Archive
from probe.record.flush import Flushes
from probe.record.sources import Windowed
from probe.record.stored import NO_RANK, Names
from probe.snapshot.log import Log
from probe.snapshot.snapshot import Snapshot
from probe.snapshot.source import Rank
from probe.streams import (
    COLLECTIVES,
    CPU_NS,
    FORWARD,
    LOADS,
    OPTIMIZER,
    PROCESS,
    SAMPLED,
    SAMPLES,
    SPANS,
    STEPS,
    THREADS,
)  # fmt: skip
from probe.tables import TABLES
from probe.tables.declaration import DONE, STEP, Table

MS = 1_000_000
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where nobody waits for a disk
BEGAN, THREAD, MODEL, ADAM, ALL_REDUCE, FLOATS = 10**12, 7, 1001, 1003, 10, 20
WATCHED = [table for table in TABLES if table.derive is not None and table.final in (STEP, DONE)]
(COLLECTIVE_TABLE,) = (table for table in TABLES if table.name == "probe.collectives")
Row = tuple[int, list[int]]  # when it is written, and its slots without the number


@dataclass(frozen=True)
class History:
    """What two ranks do.  steps: duration of each in ms; ends: of the collective in each, in thousandths of the step;
    None: it never ends."""

    steps: Sequence[int]
    ends: Sequence[int | None]

    @property
    def until(self) -> int:
        return BEGAN + sum(self.steps) * MS

    def at(self, now: int) -> Snapshot:
        return Snapshot([self.source(now)])

    def source(self, now: int) -> ListedSource:
        return ListedSource({_rank(number, now): self._rows(number, now) for number in (0, 1)})

    def _rows(self, rank: int, now: int) -> dict[str, list[list[int]]]:
        written: dict[str, list[Row]] = {stream: [] for stream in (SPANS, STEPS, LOADS, COLLECTIVES, SAMPLES)}
        begin = BEGAN
        for count, (took, end) in enumerate(zip(self.steps, self.ends, strict=True)):
            for stream, row in _step(rank, count, begin, took * MS, end, now):
                written[stream].append(row)
            begin += took * MS
        for second in range(BEGAN, begin, 1000 * MS):
            written[SAMPLES] += [
                (second, [second, PROCESS, CPU_NS, second // 3]),
                (second, [second, PROCESS, THREADS, 9]),
            ]
        return {
            stream: [[*row, seq] for seq, (when, row) in enumerate(sorted(rows), start=1) if when <= now]
            for stream, rows in written.items()
        }


def _step(rank: int, count: int, begin: int, took: int, end: int | None, now: int) -> list[tuple[str, Row]]:
    at = [begin + took * part // 1000 for part in (0, 100, 500, 850, 1000)]
    issued = at[2] + rank * took // 50
    done = None if end is None else issued + took * end // 1000
    ended = done if done is not None and done <= now else 0
    group = [issued, issued + 1, ended, ALL_REDUCE, 1, count, -1, 16, FLOATS, 0, THREAD, 0]
    return [
        (LOADS, (at[1], [at[0] + 1, at[1], 5, -1, -1, THREAD, 0])),
        (SPANS, (at[2], [at[1], at[2], MODEL, THREAD, FORWARD])),
        (COLLECTIVES, (issued, group)),
        (SPANS, (at[4] - 1, [at[3], at[4] - 1, ADAM, THREAD, OPTIMIZER])),
        (STEPS, (at[4] - 2, [at[4] - 2, count, count, ADAM, 0, 0, THREAD, SAMPLED])),
    ]


def _rank(number: int, now: int) -> Rank:
    log = Log()
    log.strings = {ALL_REDUCE: "c10d::allreduce_", FLOATS: "float32 [4]"}
    log.groups = {1: {"name": "0", "ranks": [0, 1], "size": 2, "rank": number}}
    facts = Facts(rank=number, id=f"agent-{number}", host="a", monotonic_ns=now, wall_ns=now, anchor="Adam",
                  attached_ns=BEGAN - 1, collectives_ns=BEGAN - 1, taps={"collectives": "on"})  # fmt: skip
    return Rank(40 + number, facts, {}, log)


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
