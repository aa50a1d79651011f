"""Operations between two ranks that are in flight: which rank waits for which, by their rows since the attach.

Called by probe.diagnose.looks, because gloo's Flight Recorder has none of these.  Invariant: a rank whose own half of
the operation is in flight counts as arrived.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from ..derive.operation_types import operation_type
from ..derive.operations import PAIRWISE
from ..snapshot.flight_recorder import Pending
from ..snapshot.snapshot import Snapshot
from ..snapshot.source import Rank, RankLeft
from ..streams import COLLECTIVES


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
