"""Ranks that do not agree on which collective comes next, or on its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....snapshot.flight_recorder import Pending
from ....text import title
from ...hang.evidence import Evidence
from ...hang.report import called
from ...rule import Finding, Rule


def _mismatched(evidence: Evidence) -> Iterator[Finding]:
    for each in evidence.waits:
        if each.mismatch:
            which = f"collective number {each.number} of group {each.group}"
            yield Finding(f"Ranks disagree about {which} ({each.mismatch}).", each.arrived)


def _deadlocked(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that wait for each other in different collectives."""
    waits: dict[int, Pending] = {}
    for each in evidence.waits:
        for rank in each.waiting:
            waits.setdefault(rank, each)
    for cycle in filter(None, (_cycle(rank, waits) for rank in waits)):
        why = [f"rank {rank} waits in {called(waits[rank])}" for rank in cycle if waits[rank].number >= 0]
        groups = sorted({waits[rank].group for rank in cycle})
        kinds = sorted({waits[rank].kind.partition(" ")[0] for rank in cycle if waits[rank].number < 0})
        order = f"they use group{'s' * (len(groups) > 1)} {', '.join(groups)} in different orders"
        how = order if why else f"all in {' or '.join(kinds)}"
        yield Finding(f"{title(cycle).capitalize()} wait for each other: {how}.", tuple(sorted(cycle)), why)


def _cycle(start: int, waits: Mapping[int, Pending]) -> list[int]:
    """The ranks on a path along "waits for" that comes back to one of them; empty if it ends."""
    path, rank = [start], start
    while rank in waits:
        onward = [missing for missing in waits[rank].missing if missing in waits]
        if not onward:
            return []
        rank = onward[0]
        if rank in path:
            return path[path.index(rank) :]
        path.append(rank)
    return []


MISMATCH = Rule(
    "mismatch", "Ranks issued collectives that do not match in operation, size or dtype.", _mismatched, "critical"
)
DEADLOCK = Rule("deadlock", "Ranks wait for each other in different collectives.", _deadlocked, "critical")
