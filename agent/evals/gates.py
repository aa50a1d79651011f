"""Where a snippet waits for its client: at the step, until it may run, and in front of each operation between ranks,
until that may begin.

Used by evals.py and evaluation.py; the kernels of the tap on collectives call enter() and has_begun().  Invariant: an
operation begins only if the client has let it begin, which it does for all ranks of the operation or for none.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

from ...protocol import POINT_TO_POINT, WANTS
from .interrupt import Cancelled
from .next_line import NextLine

CLIENT_TIMEOUT_SECONDS = 5.0  # a thread of the job waits that long for a client that reports nothing more
LOST_SECONDS = 30.0  # after which an agent's thread that has not looked at a gate is taken for gone
_BEGINS_SECONDS = 2.0  # in which an operation that may begin has begun, or does not come back from C


class RunGate:
    """The gate at which the training thread waits at a boundary until the client decides whether the snippet runs.

    decide() and extend() on the agent's thread, wait() on the training thread.
    """

    def __init__(self) -> None:
        self._run: bool | None = None
        self._extended = False
        self._decided = allocate_lock()
        self._decided.acquire()

    def decide(self, run: bool) -> None:
        """Run the snippet, or go on without it.  The first decision counts."""
        if self._run is None:
            self._run = run
            self._decided.release()

    def extend(self) -> None:
        """A decision will come: wait for one more period."""
        self._extended = True

    def wait(self) -> bool:
        """Whether to run.  A signal handler of the job may raise out of this call."""
        while not self._decided.acquire(timeout=CLIENT_TIMEOUT_SECONDS):
            if not self._extended:
                return False
            self._extended = False
        return bool(self._run)


class _Question:
    """One operation in front of which a snippet stands.  may_begin: also once the snippet is cancelled, which the
    client decides; answer: "" to begin, or why it must not, or Cancelled; last: the snippet ends, after the call that
    this operation is a part of."""

    def __init__(self, number: int, inside: bool, may_begin: bool) -> None:
        self.number, self.inside, self.may_begin, self.asked_at = number, inside, may_begin, monotonic()
        self.answer: str | type[Cancelled] = Cancelled  # if the agent's thread is gone
        self.asked: dict[str, Any] | None = None
        self.last = self.seen = self.late = False
        self._claims = [None]
        self._decided = allocate_lock()
        self._decided.acquire()

    def decide(self, answer: str | type[Cancelled], last: bool = False) -> bool:
        """False if it was decided before.  Any thread."""
        try:
            self._claims.pop()
        except IndexError:
            return False
        self.answer, self.last = answer, last
        self._decided.release()
        return True

    def wait(self) -> str | type[Cancelled]:
        """As long as the agent's thread, which sees to it that a client is there, looks at it."""
        while not self._decided.acquire(timeout=LOST_SECONDS) and self.seen:
            self.seen = False
        return self.answer


class OperationGate:
    """The gate in front of the operations between ranks of one snippet.

    enter() and has_begun() on the snippet's thread, everything else on the agent's.
    """

    def __init__(self, send: Callable[[str, dict[str, Any]], None]) -> None:
        self.asked = 0  # operations in front of which the snippet has stood
        self.asked_at = 0.0  # when (time.monotonic) it came to the last one
        self._send = send
        self._question: _Question | None = None
        self._begins: float | None = None  # when an operation was let begin that has not begun yet
        self._closed = self._cancelled = self._abandoned = False  # by anybody; by its client; by nobody else
        self.next_line = NextLine()

    def enter(self, taking_part: dict[str, Any], around: FrameType | None) -> None:
        """Wait until this operation may begin.  Raises RuntimeError if it must not, Cancelled if the snippet is to end.

        taking_part: operation, group, ranks, peer and tag, as `wants` has them; around: the snippet's frame if the
        operation is a part of a call that has to come to its end, as a backward pass of DDP, after whose half the next
        forward raises.
        """
        if self._abandoned and around is not None:
            return
        self.asked, self.asked_at = self.asked + 1, monotonic()
        inside, operation = around is not None, taking_part["operation"]
        question = self._question = _Question(self.asked, inside, inside or operation in POINT_TO_POINT)
        try:
            if self._closed and not question.may_begin:  # read once the question can be seen: close() does it before
                raise Cancelled
            question.asked = {**taking_part, "number": self.asked, "inside": inside}
            self._send(WANTS, {**question.asked, "ending": self._closed})
            answer = question.wait()
        finally:
            self._question = None
        if answer is Cancelled or (answer and question.last):
            raise Cancelled
        if answer:
            raise RuntimeError(f"{operation} on group {taking_part['group']!r} was not begun: {answer}")
        if question.last and around is not None:
            self.next_line.end_there(around)

    def has_begun(self) -> None:
        """The operation that was let begin is issued, or has failed."""
        self._begins = None

    @property
    def is_beginning(self) -> bool:
        """Whether an operation that other ranks begin too may not have begun here: not to be interrupted."""
        begins = self._begins
        return begins is not None and monotonic() - begins < _BEGINS_SECONDS

    @property
    def is_waiting(self) -> bool:
        """Whether the snippet stands in front of an operation."""
        return self._question is not None

    def is_left(self, heard: float) -> bool:
        """Whether it stands there and its client, heard of at this moment last, will not decide any more.

        Asked at each tick.  What has come meanwhile is read between two of them, also if this thread had long no GIL.
        """
        question = self._question
        if question is None:
            return False
        is_late = monotonic() - max(question.asked_at, heard) > CLIENT_TIMEOUT_SECONDS
        was_late, question.seen, question.late = question.late, True, is_late
        return was_late and is_late

    def decide(self, number: int, why_not: str, last: bool) -> None:
        """Let the operation with this number begin, or not.  The first decision counts.

        last: the snippet ends after the call of its own that the operation is a part of.
        """
        question = self._question
        if question is not None and question.number == number:
            before, self._begins = self._begins, None if why_not else monotonic()  # before the snippet goes on
            if not question.decide(why_not, last):
                self._begins = before

    def ask_to_end(self) -> None:
        """Have the client end the snippet on all ranks: it may have let the operation begin already on others."""
        self._closed = True
        question = self._question
        if question is not None and question.asked is not None:
            self._send(WANTS, {**question.asked, "ending": True})

    def close(self) -> bool:
        """Let none begin any more, so that the snippet ends in front of the next; whether it stands there already.

        What is a part of a call, and what receives or sends, the client decides: other ranks may have begun theirs.
        """
        self._closed = self._cancelled = True
        question = self._question
        return question is not None and not question.may_begin and question.decide(Cancelled)

    def abandon(self) -> None:
        """The client is gone: none begins any more but those of the call that the snippet is in, on all ranks alike.

        Not those either if the client has cancelled it: other ranks may train on already, and theirs would match.
        """
        self._closed, self._abandoned = True, not self._cancelled
        if (question := self._question) is not None:
            question.decide("" if question.inside and self._abandoned else Cancelled, last=True)
