"""What ranks have issued, by their rows since the attach: collectives, and operations between two ranks.

Called by looks.py, for what torch's Flight Recorders lack: before torch 2.8 gloo has none,
TORCH_FR_BUFFER_SIZE=0 turns them off, and gloo's never has operations between two ranks.  Invariant: a rank is said to
have issued nothing only of steps whose operations it has all recorded, and one whose own half of an operation is in
flight counts as arrived.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...derive.operation_types import operation_type
from ...derive.operations import PAIRWISE, operations_of
from ...snapshot.flight_recorder import Entry, Pending
from ...snapshot.snapshot import Snapshot
from ...snapshot.source import Rank, RankLeft
from ...streams import COLLECTIVES, QUEUED

_LATEST = 256  # operations of a group; one that hangs is among them
_EVEN = ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_")  # to which ranks must give equal parts


def issued_of(job: Snapshot) -> dict[int, list[Entry]]:
    """The collectives of each rank that answers, oldest first, numbered by what the backend said of the last."""
    found: dict[int, list[Entry]] = {rank.rank: [] for rank in job.ranks}
    for operations in operations_of(job):
        count, done, flags = len(operations.step), operations.slot("done_ns"), operations.slot("flags")
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
                name = strings.get(int(rows["operation"][place]), "")
                kind, even = operation_type(name), name in _EVEN
                ended, queued = bool(done[at, member]), bool(flags[at, member] & QUEUED)
                found[rank.rank].append(
                    Entry(operations.name, first + at, kind, shape, dtype, time, ended, queued=queued, even=even)
                )
    return {rank: sorted(entries, key=lambda entry: entry.created_ns) for rank, entries in found.items()}


class _Half(NamedTuple):
    """What one rank has issued and waits for."""

    kind: str  # send or recv
    rank: int
    peer: int | None  # None: any rank that sends
    group: str
    members: tuple[int, ...]
    created_ns: int  # wall clock


def pairs_of(job: Snapshot) -> list[Pending]:
    """The oldest in flight of each rank and peer."""
    halves: dict[tuple[object, ...], _Half] = {}
    for rank in list(job.ranks):
        with contextlib.suppress(RankLeft):
            for half in _halves(rank):
                halves.setdefault(half[:3], half)
    found = []
    for half in halves.values():
        kind, toward = ("recv", "to") if half.kind == "send" else ("send", "from")
        anyone = half.peer is None
        what = f"{half.kind} {toward} {'any rank' if anyone else f'rank {half.peer}'}"
        missing = () if half.peer is None or (kind, half.peer, half.rank) in halves else (half.peer,)
        unknown = tuple(member for member in half.members if member != half.rank) if anyone else ()
        here = (half.rank,)
        found.append(Pending(half.group, -1, what, half.members, here, here, missing, unknown, "", half.created_ns))
    return found


def _halves(rank: Rank) -> Iterator[_Half]:
    rows = rank.rows(COLLECTIVES)
    kinds = {id: operation_type(name) for id, name in rank.log.strings.items() if name in PAIRWISE}
    clock = rank.facts.wall_offset_ns
    slots = (rows[slot].tolist() for slot in ("done_ns", "start_ns", "operation", "group", "peer"))
    for done, start, operation, group, peer in zip(*slots, strict=True):
        if not done and operation in kinds:
            about = rank.log.groups.get(group, {})
            members = tuple(about.get("ranks") or ())
            of_job = members[peer] if 0 <= peer < len(members) else None
            yield _Half(kinds[operation], rank.rank, of_job, str(about.get("name", "")), members, start + clock)
