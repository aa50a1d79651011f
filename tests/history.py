"""What two ranks may do, as raw rows at any moment: steps, a collective in each, batches and samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from listed_source import ListedSource

from probe.host.facts import Facts
from probe.record.flush import Flushes
from probe.record.sources import Windowed
from probe.record.stored import Names
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

MS = 1_000_000
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where nobody waits for a disk
BEGAN, THREAD, MODEL, ADAM, ALL_REDUCE, FLOATS = 10**12, 7, 1001, 1003, 10, 20
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
        return ListedSource({rank_at(number, now): self._rows(number, now) for number in (0, 1)})

    def _rows(self, rank: int, now: int) -> dict[str, list[list[int]]]:
        written: dict[str, list[Row]] = {stream: [] for stream in (SPANS, STEPS, LOADS, COLLECTIVES, SAMPLES)}
        begin = BEGAN
        for count, (took, end) in enumerate(zip(self.steps, self.ends, strict=True)):
            for stream, row in step_rows(rank, count, begin, took * MS, end, now):
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


def recorded(history: History, folder: Path) -> Snapshot:
    """A recording of all of it in this folder of a job, flushed five times; the job as it is at its end."""
    end = history.until + 100 * MS
    recorder = Flushes(folder, Names(), lambda *_: None)
    for part in range(1, 6):
        job = Snapshot([Windowed(history.source(BEGAN + (end - BEGAN) * part // 5), recorder.begin)])
        recorder.flush(job, ("agent-0", "agent-1") if part == 5 else (), stops=part == 5)
    recorder.moments(history.at(end))
    return history.at(end)


def step_rows(rank: int, count: int, begin: int, took: int, end: int | None, now: int) -> list[tuple[str, Row]]:
    """What a rank records in one step, by stream.  took: ns; end: as of History."""
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


def rank_at(number: int, now: int, world_size: int = 2) -> Rank:
    log = Log()
    log.strings = {ALL_REDUCE: "c10d::allreduce_", FLOATS: "float32 [4]"}
    log.groups = {1: {"name": "0", "ranks": [*range(world_size)], "size": world_size, "rank": number}}
    facts = Facts(rank=number, id=f"agent-{number}", host="a", monotonic_ns=now, wall_ns=now, anchor="Adam",
                  attached_ns=BEGAN - 1, collectives_ns=BEGAN - 1, taps={"collectives": "on"})  # fmt: skip
    return Rank(40 + number, facts, {}, log)
