"""What a user should know beside the result of a query: who was silent, what is not recorded, and why.

Called by Connection.query.  Invariant: a result that lacks something is never without its note.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..snapshot.snapshot import Snapshot
from ..streams import COLLECTIVES, DEVICE, LOADS, MARKS, SAMPLES, SPANS
from ..tables.declaration import Table
from ..text import some, title

_TAPS = {
    SPANS: ("forward", "optimizer"),
    MARKS: ("backward",),
    DEVICE: ("device",),
    COLLECTIVES: ("collectives",),
    LOADS: ("loader",),
}


@dataclass(frozen=True)
class Answered:
    """Who answered a query, in how many seconds.  read: those of the silent ones whose memory was read."""

    total: int
    silent: tuple[int, ...]
    read: tuple[int, ...]
    seconds: float

    @property
    def seen(self) -> int:
        """How many ranks the result has rows of."""
        return self.total - len(self.silent) + len(self.read)

    def __str__(self) -> str:
        told = f"answered {self.total - len(self.silent)}/{self.total} ranks in {self.seconds:.1f} s"
        told += f", silent: {some(self.silent)}" if self.silent else ""
        return f"{told}; read out of its memory: {title(self.read)}" if self.read else told


def answered_of(job: Snapshot, seconds: float) -> Answered:
    read = tuple(one.rank for one in job.read)
    silent = sorted([*read, *(one.rank for one in job.silent)])
    return Answered(len(job.ranks) + len(job.silent), tuple(silent), read, seconds)


def notes_of(job: Snapshot, scanned: Iterable[Table], endpoint: str) -> list[str]:
    """One line each.  endpoint: of the job, for the commands in them."""
    tables = [table for table in scanned if table.derive is not None]
    return [*_taps(job, tables), *_no_steps(job, tables), *_unsampled(job, tables, endpoint)]


def _taps(job: Snapshot, tables: Iterable[Table]) -> list[str]:
    names = dict.fromkeys(tap for table in tables for tap in table.taps or _of_streams(table))
    why: dict[tuple[str, str], list[int]] = {}
    for raw in job.ranks:
        for name in names:
            state = str(raw.facts.get("taps", {}).get(name, "on"))
            if state != "on":
                why.setdefault((name, state), []).append(raw.rank)
    return [f"rank {some(ranks)}: {name} is {state}" for (name, state), ranks in why.items()]


def _of_streams(table: Table) -> list[str]:
    return [tap for stream in table.streams for tap in _TAPS.get(stream, ())]


def _no_steps(job: Snapshot, tables: Iterable[Table]) -> list[str]:
    by_steps = any(table.streams != (SAMPLES,) for table in tables)
    stepping = [raw for raw in job.ranks if raw.timeline.steps] if by_steps and not job.open_steps else []
    late = [raw.rank for raw in stepping if raw.timeline.completed is None]
    if not late:
        return []
    return [f"rank {some(late)}: no whole step since the attach yet (--open shows the one that runs)"]


def _unsampled(job: Snapshot, tables: Iterable[Table], endpoint: str) -> list[str]:
    """Named for the rank that lacks most, and that which lacks least if those are not as many."""
    if not any(MARKS in table.streams for table in tables):
        return []
    missing = {raw: raw.timeline.unsampled[0] for raw in job.ranks}
    most = max(missing, key=missing.__getitem__, default=None)
    if most is None or not missing[most]:
        return []
    whole, settings = most.timeline.unsampled[1], most.facts["sampling"]
    said = f"{missing[most]} of {whole} steps were not sampled"
    least = min(missing, key=missing.__getitem__)
    if missing[least] != missing[most]:
        said += f" on rank {most.rank}, {missing[least]} on rank {least.rank}: sums by rank are not of the same steps"
    if settings["sample"] == 1:
        return [f"{said} (they were before sample=1)"]
    how = f"sample={settings['sample']}, now one block of ten steps in {settings['every']}"
    return [f"{said} ({how}): probe {endpoint} set sample=1 records all"]
