"""Operations between two ranks that are in flight: who waits for whom, by their rows since the attach.

Called by probe.diagnose.evidence, for gloo's Flight Recorder has none of these.  Invariant: a rank whose other half is
in flight too has come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..derive.operation_types import operation_type
from ..derive.operations import PAIRWISE
from ..snapshot.flight_recorder import Pending
from ..snapshot.snapshot import Rank, RankLeft, Snapshot
from ..streams import COLLECTIVES


@dataclass(frozen=True)
class _Half:
    """What one rank has issued and waits for.  created_ns: wall clock."""

    kind: str  # send or recv
    group: str
    members: tuple[int, ...]
    rank: int
    peer: int | None  # None: whoever sends
    created_ns: int


def pairs_of(job: Snapshot) -> list[Pending]:
    """Those in flight, one of each rank and peer: the oldest."""
    halves: dict[tuple[str, int, int | None], _Half] = {}
    for raw in list(job.ranks):
        try:
            for half in _of_rank(raw):
                halves.setdefault((half.kind, half.rank, half.peer), half)
        except RankLeft:
            continue
    return [_pending(half, _other(half) in halves) for half in halves.values()]


def _other(half: _Half) -> tuple[str, int | None, int]:
    return "recv" if half.kind == "send" else "send", half.peer, half.rank


def _pending(half: _Half, come: bool) -> Pending:
    toward = "to" if half.kind == "send" else "from"
    who = "any rank" if half.peer is None else f"rank {half.peer}"
    missing = () if come or half.peer is None else (half.peer,)
    unknown = tuple(rank for rank in half.members if rank != half.rank) if half.peer is None else ()
    return Pending(
        half.group, -1, f"{half.kind} {toward} {who}", half.members, (half.rank,), (half.rank,), missing, unknown, "",
        half.created_ns,
    )  # fmt: skip


def _of_rank(raw: Rank) -> Iterator[_Half]:
    rows = raw.rows(COLLECTIVES)
    kinds = {id: operation_type(name) for id, name in raw.log.strings.items() if name in PAIRWISE}
    clock = int(raw.facts["wall_ns"]) - int(raw.facts["monotonic_ns"])
    for done, start, operation, group, peer in zip(
        *(rows[slot].tolist() for slot in ("done_ns", "start_ns", "operation", "group", "peer")), strict=True
    ):
        if done or operation not in kinds:
            continue
        about = raw.log.groups.get(group, {})
        members = tuple(about.get("ranks") or ())
        of_job = members[peer] if 0 <= peer < len(members) else None
        yield _Half(kinds[operation], str(about.get("name", "")), members, raw.rank, of_job, start + clock)
