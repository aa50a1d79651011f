"""What a user should know beside the result of a query: who was silent, what is not recorded, and why.

Called by Connection.query.  Invariant: a result that lacks something always has a note about it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..snapshot.snapshot import Snapshot
from ..streams import MARKS, SAMPLES
from ..tables.declaration import Table
from ..text import some
from .result import NO_STEPS, SILENT, TAP_OFF, UNSAMPLED, Coverage, Note


def notes_of(snapshot: Snapshot, coverage: Coverage, scanned: Iterable[Table], endpoint: str) -> tuple[Note, ...]:
    """scanned: the tables that the query read; endpoint: of the job, for the commands in the notes."""
    tables = [table for table in scanned if table.derive is not None]
    silent = [Note(SILENT, str(coverage), coverage.silent)] if coverage.silent else []
    return (
        *silent,
        *_taps_off(snapshot, tables),
        *_without_steps(snapshot, tables),
        *_unsampled(snapshot, tables, endpoint),
    )


def _taps_off(snapshot: Snapshot, tables: Iterable[Table]) -> list[Note]:
    names = dict.fromkeys(tap for table in tables for tap in table.filled_by)
    off: dict[tuple[str, str], list[int]] = {}
    for rank in snapshot.ranks:
        for name in names:
            state = rank.facts.taps.get(name, "on")
            if state != "on":
                off.setdefault((name, state), []).append(rank.rank)
    return [
        Note(TAP_OFF, f"rank {some(ranks)}: {name} is {state}", tuple(ranks)) for (name, state), ranks in off.items()
    ]


def _without_steps(snapshot: Snapshot, tables: Iterable[Table]) -> list[Note]:
    by_step = any(table.streams != (SAMPLES,) for table in tables)
    stepping = [rank for rank in snapshot.ranks if rank.timeline.steps] if by_step and not snapshot.open_steps else []
    late = tuple(rank.rank for rank in stepping if rank.timeline.completed is None)
    text = f"rank {some(late)}: no whole step since the attach yet (--open shows the one in progress)"
    return [Note(NO_STEPS, text, late)] if late else []


def _unsampled(snapshot: Snapshot, tables: Iterable[Table], endpoint: str) -> list[Note]:
    """Names the rank that lacks most steps, and the one that lacks least if the two differ."""
    if not any(MARKS in table.streams for table in tables):
        return []
    missing = {rank: rank.timeline.unsampled[0] for rank in snapshot.ranks}
    most = max(missing, key=missing.__getitem__, default=None)
    if most is None or not missing[most]:
        return []
    settings = most.facts.sampling
    text = f"{missing[most]} of {most.timeline.unsampled[1]} steps were not sampled"
    least = min(missing, key=missing.__getitem__)
    if missing[least] != missing[most]:
        text += f" on rank {most.rank}, {missing[least]} on rank {least.rank}: sums by rank do not cover the same steps"
    if settings is None or settings.sample == 1:
        text += " (they were before sample=1)"
    else:
        text += f" (sample={settings.sample}, now 10 of every {10 * settings.every} steps): "
        text += f"probe {endpoint} set sample=1 records all"
    return [Note(UNSAMPLED, text, tuple(rank.rank for rank, count in missing.items() if count))]
