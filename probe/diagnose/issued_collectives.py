"""Collectives since the attach in the words of torch's Flight Recorder, for a job in which that tells nothing.

Called by probe.diagnose.evidence: before torch 2.8 gloo has no recorder, and TORCH_FR_BUFFER_SIZE=0 turns it off.
Invariant: a rank is said to have issued nothing only of steps whose operations it has all recorded.
"""

from __future__ import annotations

import numpy as np

from ..derive.operation_types import operation_type
from ..derive.operations import Operations, operations_of
from ..snapshot.flight_recorder import Entry
from ..snapshot.snapshot import Rank, Snapshot

_LATEST = 256  # operations of a group; one that hangs is among them


def issued_of(job: Snapshot) -> dict[int, list[Entry]]:
    """Of each rank that answers, oldest first."""
    found: dict[int, list[Entry]] = {raw.rank: [] for raw in job.ranks}
    for operations in operations_of(job):
        numbers = _numbers(operations)
        done = operations.slot("done_ns")
        for at in range(max(0, len(numbers) - _LATEST), len(numbers)):
            for member, rank in enumerate(operations.members):
                raw = operations.raws[member]
                if raw is not None and operations.place[at, member] >= 0:
                    found[rank].append(_entry(operations, raw, at, member, int(numbers[at]), bool(done[at, member])))
    return {rank: sorted(entries, key=lambda entry: entry.created_ns) for rank, entries in found.items()}


def _numbers(operations: Operations) -> list[int]:
    """One after the other, by what the backend said of one of them."""
    count = len(operations.step)
    told = operations.slot("group_seq", -1).max(axis=1, initial=-1)
    (known,) = np.nonzero(told >= 0)
    first = int(told[known[-1]] - known[-1]) if len(known) else 1
    return list(range(first, first + count))


def _entry(operations: Operations, raw: Rank, at: int, member: int, number: int, ended: bool) -> Entry:
    rows = operations.rows[member]
    assert rows is not None  # of a rank that has a raw
    place = operations.place[at, member]
    strings = raw.log.strings
    dtype, _, shape = strings.get(int(rows["tensor"][place]), "").partition(" ")
    kind = operation_type(strings.get(int(rows["operation"][place]), ""))
    return Entry(operations.name, number, kind, shape, dtype, int(operations.time[at, member]), ended)
