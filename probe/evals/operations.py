"""Which operations between ranks in a snippet begin: on all ranks that take part, or on none.

Called by probe.evals.attempt, which hears from all ranks in front of what their snippets stand.  Invariant: pure; an
operation begins only when all its ranks stand in front of it, and no rank stands in front of one that cannot begin any
more.  Only a send may begin before its receive, and only if both ranks stand in front of operations between two ranks:
a ring of sends that do not wait needs that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from ..protocol import POINT_TO_POINT, RECEIVE, RECEIVE_ANY, SEND
from ..text import grouped, title

CANCELLED = "cancelled"  # why the operations of a cancelled snippet do not begin
_ERROR_CHARACTERS = 200  # quoted of another rank's error


class Message(NamedTuple):
    """From one rank to another, as torch tells them apart."""

    group: str
    tag: int | None
    source: int
    target: int | None


@dataclass(frozen=True)
class Operation:
    """What a rank's snippet stands in front of.  ranks: of the job, all that take part; peer: the other of two, None if
    there are more or it may be any; tag: of a send or receive; inside: it is a part of a call that has to come to its
    end."""

    name: str
    group: str
    ranks: tuple[int, ...]
    peer: int | None = None
    tag: int | None = None
    inside: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} on group {self.group!r}"

    def message(self, rank: int) -> Message:
        """What this rank sends."""
        return Message(self.group, self.tag, rank, self.peer)

    def messages(self, rank: int) -> list[Message]:
        """What this rank may receive."""
        sources = [each for each in self.ranks if each != rank] if self.peer is None else [self.peer]
        return [Message(self.group, self.tag, source, rank) for source in sources]


@dataclass
class Operations:
    """The operations of one snippet on all its ranks.  error: what ended it on each rank where it has ended."""

    standing: dict[int, Operation] = field(default_factory=dict)
    ended: dict[int, str | None] = field(default_factory=dict)
    cancelled: bool = False
    _at: dict[Operation, set[int]] = field(default_factory=dict)  # the ranks in front of each one of more than two
    _sent: Counter[Message] = field(default_factory=Counter)  # begun before their receives

    def stands(self, rank: int, operation: Operation) -> None:
        self._leaves(rank)
        self.standing[rank] = operation
        if operation.name not in POINT_TO_POINT:
            self._at.setdefault(operation, set()).add(rank)

    def has_ended(self, rank: int, error: str | None) -> None:
        self.ended[rank] = error
        self._leaves(rank)

    def _leaves(self, rank: int) -> None:
        operation = self.standing.pop(rank, None)
        if operation is not None and (ranks := self._at.get(operation)) is not None:
            ranks.discard(rank)
            if not ranks:
                del self._at[operation]

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
            self._leaves(rank)
        return answers

    def _must_begin(self, rank: int) -> bool:
        operation = self.standing[rank]
        is_sent = operation.name in (RECEIVE, RECEIVE_ANY) and any(map(self._sent.get, operation.messages(rank)))
        return operation.inside or is_sent

    def _begun(self) -> set[int]:
        begun = {
            rank
            for operation, ranks in self._at.items()
            if ranks.issuperset(operation.ranks)
            for rank in operation.ranks
        }
        for rank, operation in self.standing.items():
            if rank not in begun and operation.name in (RECEIVE, RECEIVE_ANY):  # which finds its send
                begun.update(self._received(rank, begun))
        return begun

    def _received(self, rank: int, begun: set[int]) -> set[int]:
        """This rank, and the one that sends to it now, if any does."""
        for message in self.standing[rank].messages(rank):
            if self._sent[message]:
                self._sent[message] -= 1
                return {rank}
            sender = self.standing.get(message.source)
            is_there = sender is not None and sender.name == SEND and sender.message(message.source) == message
            if is_there and message.source not in begun:
                return {rank, message.source}
        return set()

    def _stuck(self) -> list[int]:
        """The ranks whose operation can begin no more: they wait for ranks that have ended, or for one another."""
        between_two = [(each, {rank}) for rank, each in self.standing.items() if each.name in POINT_TO_POINT]
        hopeful: set[int] = set()
        before = -1
        while len(hopeful) > before:
            before = len(hopeful)
            for operation, ranks in (*self._at.items(), *between_two):
                if not ranks <= hopeful and self._has_hope(operation, ranks, hopeful):
                    hopeful |= ranks
        return sorted(self.standing.keys() - hopeful)

    def _has_hope(self, operation: Operation, ranks: set[int], hopeful: set[int]) -> bool:
        """Whether the others may come to the operation that these ranks stand in front of."""
        may_come = (self._may_come(each, hopeful) for each in operation.ranks if each not in ranks)
        return any(may_come) if operation.name == RECEIVE_ANY else all(may_come)

    def _may_come(self, rank: int, hopeful: set[int]) -> bool:
        """Whether this rank runs, or may pass the operation that it stands in front of."""
        return rank not in self.ended and (rank not in self.standing or rank in hopeful)

    def _sent_ahead(self, stuck: list[int]) -> list[int]:
        """The sends among what is stuck whose receivers are at operations between two ranks, too."""
        ahead = []
        for rank in stuck:
            operation = self.standing[rank]
            receiver = None if operation.peer is None else self.standing.get(operation.peer)
            if operation.name == SEND and receiver is not None and receiver.name in POINT_TO_POINT:
                self._sent[operation.message(rank)] += 1
                ahead.append(rank)
        return ahead

    def _why_not(self, rank: int) -> str:
        operation = self.standing[rank]
        others = [each for each in operation.ranks if each != rank]
        if gone := [each for each in others if each in self.ended]:
            error = next((said for each in gone if (said := self.ended[each])), "")
            told = f"{title(gone)} {'has' if len(gone) == 1 else 'have'} ended the snippet without it"
            return f"{told} ({error[:_ERROR_CHARACTERS]})" if error else told
        here = self._at.get(operation, set())
        elsewhere = [each for each in others if each in self.standing and each not in here]
        same = grouped((str(self.standing[each]), each) for each in elsewhere).items()
        told = "; ".join(f"{title(ranks)} stand{'s' * (len(ranks) == 1)} in front of {what}" for what, ranks in same)
        return told or "its ranks wait for one another"
