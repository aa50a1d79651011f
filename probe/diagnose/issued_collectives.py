"""Collectives since the attach as entries of torch's Flight Recorder, for a job whose recorders are empty.

Called by probe.diagnose.looks: before torch 2.8 gloo has no recorder, and TORCH_FR_BUFFER_SIZE=0 turns it off.
Invariant: a rank is said to have issued nothing only of steps whose operations it has all recorded.
"""

from __future__ import annotations

import numpy as np

from ..derive.operation_types import operation_type
from ..derive.operations import operations_of
from ..snapshot.flight_recorder import Entry
from ..snapshot.snapshot import Snapshot

_LATEST = 256  # operations of a group; one that hangs is among them


def issued_of(job: Snapshot) -> dict[int, list[Entry]]:
    """The collectives of each rank that answers, oldest first, numbered by what the backend said of the last."""
    found: dict[int, list[Entry]] = {rank.rank: [] for rank in job.ranks}
    for operations in operations_of(job):
        count, done = len(operations.step), operations.slot("done_ns")
        numbers = operations.slot("group_seq", -1).max(axis=1, initial=-1)
        (known,) = np.nonzero(numbers >= 0)
        first = int(numbers[known[-1]] - known[-1]) if len(known) else 1
        for member, (rank, rows) in enumerate(zip(operations.ranks, operations.rows, strict=True)):
            for at in range(max(0, count - _LATEST), count):
                place = operations.place[at, member]
                if rank is None or rows is None or place < 0:
                    continue
                strings, time = rank.log.strings, int(operations.time[at, member])
                dtype, _, shape = strings.get(int(rows["tensor"][place]), "").partition(" ")
                kind = operation_type(strings.get(int(rows["operation"][place]), ""))
                ended = bool(done[at, member])
                found[rank.rank].append(Entry(operations.name, first + at, kind, shape, dtype, time, ended))
    return {rank: sorted(entries, key=lambda entry: entry.created_ns) for rank, entries in found.items()}
