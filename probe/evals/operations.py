"""Which operations between ranks in a snippet begin: on all ranks that take part, or on none.

Called by probe.evals.attempt, which hears from all ranks in front of what their snippets stand.  Invariant: pure; an
operation begins only when all its ranks stand in front of it, and no rank stands in front of one that cannot begin any
more.  Only a send may begin before its receive, and only if both ranks stand in front of operations between two ranks:
a ring of sends that do not wait needs that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..protocol import POINT_TO_POINT, RECEIVE, RECEIVE_ANY, SEND
from ..text import grouped, title

CANCELLED = "cancelled"  # why the operations of a cancelled snippet do not begin
_ERROR_CHARACTERS = 200  # quoted of another rank's error


@dataclass(frozen=True)
class Operation:
    """What a rank's snippet stands in front of.  ranks: of the job, all that take part; peer: the other of two, None if
    there are more or it may be any; inside: it is a part of a call that has to come to its end."""

    name: str
    group: str
    ranks: tuple[int, ...]
    peer: int | None = None
    inside: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} on group {self.group!r}"


@dataclass
class Operations:
    """The operations of one snippet on all its ranks.  error: what ended it on each rank where it has ended."""

    standing: dict[int, Operation] = field(default_factory=dict)
    ended: dict[int, str | None] = field(default_factory=dict)
    cancelled: bool = False
    _sent: Counter[tuple[str, int, int]] = field(default_factory=Counter)  # begun without a receive: group, from, to

    def stands(self, rank: int, operation: Operation) -> None:
        self.standing[rank] = operation

    def has_ended(self, rank: int, error: str | None) -> None:
        self.ended[rank] = error
        self.standing.pop(rank, None)

    def decide(self) -> dict[int, str]:
        """Rank -> "" where its operation begins now, or why it must not; a rank that may yet begin it is not there.

        Of a cancelled snippet only those begin that are inside of calls, and receives of what is sent already.
        """
        if self.cancelled and (ends := [rank for rank in self.standing if not self._must_begin(rank)]):
            for rank in ends:
                self.has_ended(rank, CANCELLED)
            return dict.fromkeys(ends, CANCELLED)
        answers = dict.fromkeys(self._begun(), "")
        if not answers and (stuck := self._stuck()):
            answers = dict.fromkeys(self._sent_ahead(stuck), "") or {rank: self._why_not(rank) for rank in stuck}
        for rank in answers:
            del self.standing[rank]
        return answers

    def _must_begin(self, rank: int) -> bool:
        operation = self.standing[rank]
        sources = operation.ranks if operation.peer is None else (operation.peer,)
        is_sent = operation.name in (RECEIVE, RECEIVE_ANY) and any(
            self._sent[operation.group, source, rank] for source in sources
        )
        return operation.inside or is_sent

    def _begun(self) -> set[int]:
        begun: set[int] = set()
        for rank in self.standing:
            if rank not in begun:
                begun.update(self._together(rank, begun))
        return begun

    def _together(self, rank: int, begun: set[int]) -> set[int]:
        """The ranks that begin an operation with this one now; empty if some are not there yet."""
        operation = self.standing[rank]
        if operation.name not in POINT_TO_POINT:
            return {*operation.ranks} if all(self._is_at(each, operation) for each in operation.ranks) else set()
        if operation.name == SEND:
            return set()  # its receive finds it
        sources = [operation.peer] if operation.peer is not None else [each for each in operation.ranks if each != rank]
        for source in sources:
            if self._sent[operation.group, source, rank]:
                self._sent[operation.group, source, rank] -= 1
                return {rank}
            if source not in begun and self._sends_to(source, rank, operation.group):
                return {rank, source}
        return set()

    def _sends_to(self, source: int, rank: int, group: str) -> bool:
        other = self.standing.get(source)
        return other is not None and (other.name, other.group, other.peer) == (SEND, group, rank)

    def _stuck(self) -> list[int]:
        """The ranks whose operation can begin no more: they wait for ranks that have ended, or for one another."""
        hopeful: set[int] = set()
        before = -1
        while len(hopeful) > before:
            before = len(hopeful)
            hopeful |= {rank for rank in self.standing if rank not in hopeful and self._has_hope(rank, hopeful)}
        return sorted(self.standing.keys() - hopeful)

    def _has_hope(self, rank: int, hopeful: set[int]) -> bool:
        operation = self.standing[rank]
        may_come = [self._may_come(each, operation, hopeful) for each in operation.ranks if each != rank]
        return any(may_come) if operation.name == RECEIVE_ANY else all(may_come)

    def _may_come(self, rank: int, operation: Operation, hopeful: set[int]) -> bool:
        """Whether this rank runs, stands in front of the same operation, or may pass the one it stands in front of."""
        if rank in self.ended:
            return False
        return rank not in self.standing or rank in hopeful or self._is_at(rank, operation)

    def _is_at(self, rank: int, operation: Operation) -> bool:
        """Whether this rank stands in front of its part of an operation of more than two ranks."""
        return operation.name not in POINT_TO_POINT and self.standing.get(rank) == operation

    def _sent_ahead(self, stuck: list[int]) -> list[int]:
        """The sends among what is stuck whose receivers are at operations between two ranks, too."""
        ahead = []
        for rank in stuck:
            operation = self.standing[rank]
            peer = self.standing.get(operation.peer) if operation.peer is not None else None
            if (
                operation.name == SEND
                and operation.peer is not None
                and peer is not None
                and peer.name in POINT_TO_POINT
            ):
                self._sent[operation.group, rank, operation.peer] += 1
                ahead.append(rank)
        return ahead

    def _why_not(self, rank: int) -> str:
        operation = self.standing[rank]
        others = [each for each in operation.ranks if each != rank]
        if gone := [each for each in others if each in self.ended]:
            error = next((said for each in gone if (said := self.ended[each])), "")
            told = f"{title(gone)} {'has' if len(gone) == 1 else 'have'} ended the snippet without it"
            return f"{told} ({error[:_ERROR_CHARACTERS]})" if error else told
        elsewhere = [each for each in others if each in self.standing and not self._is_at(each, operation)]
        same = grouped((str(self.standing[each]), each) for each in elsewhere).items()
        return "; ".join(f"{title(ranks)} stand{'s' * (len(ranks) == 1)} in front of {what}" for what, ranks in same)
