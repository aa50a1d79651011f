"""One attempt to run a snippet on some ranks: what they are asked, and what they answer (see evaluation.py).

Made by evaluate().  Invariant: an attempt that was withdrawn has left no rank armed, and no rank in front of an
operation that others have begun.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import protocol as wire
from ..attach.deferred_signals import DeferredSignals
from ..client.client import AgentLink, Call, Client, Header
from ..errors import AgentError, EvalError, Interrupted, SilentError
from ..snapshot.align import may_change, refresh
from ..text import title
from .operations import CANCELLED, Operation, Operations
from .snippet import EvalResult, OnOutput, RankResult, Snippet, losses
from .waiting import ANSWER_S, LOOK_S, Waiting

_GRACE_S = 0.4  # for the answers to a cancel: with what else it takes, half a second
_COMING_S = 1.0  # for ranks to come to a first operation that others have come to
_ENDING_S, _MOST_ENDING_S = 2.6, 10.6  # likewise, for snippets that come to their next operation first
STAYING_S = 2.0  # after the last `stay` an agent is sure to wait this long
_MARGIN = 2  # boundaries: one rank may be past the first before it hears of it
_SENDING_S = 0.02  # by which a busy machine may delay a message
_STOPPED = "the command was stopped for too long"
_NOT_TOGETHER = "the ranks do not run the eval at one step: run it again"


@dataclass
class _Rank:
    """A rank in one attempt.  armed: its answer to `arm`; count: its own number of the step to run at, -1 for its next
    boundary; ready: it stands at that step; output: what the snippet has printed; wants: the number of its operation
    between ranks that was the last to ask for a `pass`."""

    armed: Header = field(default_factory=dict)
    count: int = -1
    ready: bool = False
    output: list[str] = field(default_factory=list)
    wants: int = 0


class Attempt:
    """One attempt: a call per armed rank, and what came of it.  together: at one step of the job; number: from 0."""

    def __init__(
        self, client: Client, snippet: Snippet, patience: float, on_output: OnOutput | None, waiting: Waiting,
        together: bool, number: int,
    ) -> None:  # fmt: skip
        self._client, self._snippet, self._patience, self._on_output = client, snippet, patience, on_output
        self._waiting, self._together, self._number = waiting, together, number
        self._ranks: dict[Call, _Rank] = {}
        self._order = secrets.token_hex(8)  # all ranks run snippets of one step in one order, so none waits for another
        self._round_trip = 0.0  # seconds that arm() took
        self._gone = self._released = False
        self._stayed = time.monotonic()  # when the last `stay` went out
        self._operations = Operations()
        self._ends_later = False  # a cancelled snippet gets time to come to its next operation, or out of a call
        self._wanted_at = 0.0  # when a rank came to an operation last
        self._held: list[tuple[list[int], str, str]] | None = None  # for on_output, during the withdrawal
        self.interrupted = False  # during the withdrawal, or before it and not noticed

    def arm(self, links: Sequence[AgentLink]) -> None:
        """Every rank takes the snippet and says how far it is."""
        begun = time.monotonic()
        request = asdict(self._snippet)
        request["where"] = "now" if request.pop("now") else "boundary"
        code = request.pop("code").encode()
        with DeferredSignals():  # an exception in its midst would leave ranks armed that a withdrawal does not know
            self._ranks = {self._client.send(link, wire.ARM, code, **request): _Rank() for link in links}
        self._wait(begun + self._patience, lambda: all(rank.armed for rank in self._ranks.values()))
        if late := [call.link.number for call, rank in self._ranks.items() if not rank.armed]:
            raise SilentError(f"Rank {', '.join(late)} does not answer: nothing was run.")
        self._round_trip = time.monotonic() - begun
        self._waiting.armed()

    def go(self) -> None:
        """Let it run: at once, at each rank's next boundary, or at one step of the job."""
        if self._together:
            if any(call.link.facts.step_base != rank.armed["base"] for call, rank in self._ranks.items()):
                raise EvalError("the step numbers have just changed.", "", "eval-missed")
            completed = max(call.link.facts.step_base + int(rank.armed["count"]) for call, rank in self._ranks.items())
            step = completed + self._margin() * 4**self._number
            for call, rank in self._ranks.items():
                rank.count = step - call.link.facts.step_base
        self._gone = True
        for call, rank in self._ranks.items():
            self._client.send(call.link, wire.GO, of=call.id.decode(), count=rank.count, order=self._order)

    def _margin(self) -> int:
        """Boundaries from the furthest rank to the step to run at: no rank may pass it before `go` arrives."""
        if not (said := [rank.armed for rank in self._ranks.values() if rank.armed.get("step_ns")]):
            return _MARGIN
        steps = [each["step_ns"] / 1e9 for each in said]
        left = [step - (each.get("waiting") or 0) for step, each in zip(steps, said, strict=True)]
        needed = 5 * self._round_trip + _SENDING_S
        return 1 if min(left) > needed else _MARGIN + math.ceil(needed / min(steps))

    def finish(self) -> None:
        """Wait until all are done.  Raises EvalError at the time-out, or when the job has not stepped for too long."""
        end = math.inf if self._waiting.end is None else self._waiting.end
        if self._together:
            self._until(end, lambda: all(rank.ready for rank in self._ranks.values()))
            if self._is_late():
                raise EvalError("the ranks were not told in time.", "", "eval-missed")
            for call in self._ranks:
                self._client.send(call.link, wire.RUN, of=call.id.decode())
            self._released = True
        self._until(end, self._all_over)
        if time.monotonic() >= end and any(call.result().get("cancelled") for call in self._ranks):
            raise self._timed_out()  # the rank was the first to see it
        # ranks that had not stepped since their attach know only now what step the job has come to
        late = [call.link for call in self._ranks if may_change(call.link)] if not self._snippet.now else []
        refresh(self._client, late, time.monotonic() + self._patience)

    def _stay(self) -> None:
        if self._together:
            self._stayed = time.monotonic()
            for call in (each for each in self._ranks if not each.over):
                self._client.send(call.link, wire.STAY, of=call.id.decode())

    def _is_late(self) -> bool:  # ranks may have given up waiting for this process, which was stopped
        return time.monotonic() > self._stayed + STAYING_S

    def _all_over(self) -> bool:
        self._let_operations_begin()
        return all(call.over for call in self._ranks)

    def _let_operations_begin(self) -> None:
        """Answer the ranks whose snippets stand in front of operations between ranks, where the answer is known."""
        calls = {call.link.rank: call for call in self._ranks}
        for rank, call in calls.items():
            if call.answer is not None and rank not in self._operations.ended:
                self._operations.has_ended(rank, call.answer.get("error"))
        if not self._operations.cancelled and any(call.error for call in self._ranks):
            return  # what follows is a withdrawal; an answer would not reach that rank
        while answers := self._operations.decide():
            late = self._together and not self._operations.cancelled and self._is_late()
            why_none = _STOPPED if late else "" if self._together else _NOT_TOGETHER
            with DeferredSignals():  # an exception in its midst would leave an operation to some of its ranks
                self._answer({calls[rank]: why_none or why_not for rank, why_not in answers.items()})
            if late:
                raise EvalError(f"{_STOPPED.capitalize()}, so the snippet was ended.", "", "eval-timeout")

    def _answer(self, answers: dict[Call, str]) -> None:
        """Let the operations of these calls begin, or say why they must not."""
        last = self._operations.cancelled
        requests = {
            call.link: {"of": call.id.decode(), "number": self._ranks[call].wants, "why_not": why_not, "last": last}
            for call, why_not in answers.items()
        }
        self._client.send_several(wire.PASS, requests)

    def _until(self, end: float, done: Callable[[], bool]) -> None:
        while not done():
            self._stay()
            self._wait(min(end, time.monotonic() + LOOK_S), done)
            if not self._snippet.now and not done():
                self._look_for_steps(is_last=time.monotonic() >= end)
            if time.monotonic() >= end and not done():
                raise self._timed_out()

    def _timed_out(self) -> EvalError:
        allow = "Allow more time: --timeout SECONDS"
        return EvalError(f"Cancelled after {self._snippet.timeout:g} s.", allow, "eval-timeout")

    def _wait(self, deadline: float, until: Callable[[], bool]) -> None:
        """Until the deadline or `until`; the first error of any rank ends it and is raised."""
        calls = [*self._ranks]
        self._client.wait(calls, deadline, self._take, lambda: until() or any(call.error for call in calls))
        if error := next((call.error for call in calls if call.error), None):
            raise error

    def _take(self, call: Call, header: Header, payload: Sequence[Any]) -> None:
        if (rank := self._ranks.get(call)) is None:
            return
        if header["kind"] == wire.ARMED:
            rank.armed = header
        elif header["kind"] == wire.READY:
            rank.ready = True
        elif header["kind"] == wire.WANTS:
            self._stands(call, rank, header)
        elif header["kind"] == wire.ENDING:
            self._ends_later = True
        elif header["kind"] == wire.OUT:
            rank.output.append(str(header["text"]))
            self._tell([call.link.rank], str(header["stream"]), str(header["text"]))

    def _tell(self, ranks: list[int], stream: str, text: str) -> None:
        if self._held is not None:
            self._held.append((ranks, stream, text))
        elif self._on_output is not None:
            self._on_output(ranks, stream, text)

    def _stands(self, call: Call, rank: _Rank, wants: Header) -> None:
        """The snippet of a rank stands in front of an operation, or is told to end there by its own agent."""
        self._wanted_at, self._ends_later = time.monotonic(), True
        if wants["ending"] and not self._operations.cancelled:
            self._operations.cancelled = True
            self._client.cancel(self._ranks)
        if wants["number"] != rank.wants:  # else it has been told before, and may be answered already
            rank.wants = wants["number"]
            who = tuple(wants["ranks"]), wants.get("peer"), wants.get("tag")
            operation = Operation(wants["operation"], wants["group"], *who, inside=wants["inside"])
            self._operations.stands(call.link.rank, operation)

    def _look_for_steps(self, is_last: bool) -> None:
        """A rank that still waits for its boundary must be stepping; one that stands there or runs need not.

        is_last: a rank that does not answer now is judged by what it said before.
        """
        deadline = time.monotonic() + min(self._patience, ANSWER_S)
        waiting = [call for call, rank in self._ranks.items() if not call.over and (self._released or not rank.ready)]
        asked = {call: self._client.send(call.link, wire.HELLO, protocol=wire.PROTOCOL) for call in waiting}
        self._client.wait(list(asked.values()), deadline, self._take, lambda: all(call.over for call in self._ranks))
        self._client.forget(asked.values())
        late = []
        for call, hello in asked.items():
            if (hello.answer is not None or is_last) and not call.over:
                facts, rank = call.link.facts if hello.answer is None else hello.answer["facts"], self._ranks[call]
                call.link.facts = facts
                target = rank.count if self._together else int(rank.armed["count"]) + 1
                # at its boundary, but nothing runs there: its loop does not turn, perhaps after a training's last step
                if facts.count < target or facts.idle:
                    late.append(call.link)
        self._waiting.look(late, self._take)

    def ran(self) -> str:
        """Where it has run although the attempt has failed, and where it may have, in words; "" for nowhere."""
        over = [call.link.rank for call in self._ranks if call.answer is not None and call.answer.get("ran", True)]
        begun = self._released or (self._gone and not self._together)
        mute = (call for call in self._ranks if call.answer is None and not isinstance(call.error, AgentError))
        unknown = [call.link.rank for call in mute if begun]
        where = [f"it has run on {title(over)}"] if over else []
        return "; ".join([*where, f"of {title(unknown)} that is unknown"] if unknown else where)

    def anything_ran(self) -> bool:
        return any(call.answer is not None or rank.output for call, rank in self._ranks.items())

    def withdraw(self) -> list[AgentLink]:
        """Cancel whatever is armed or runs; returns the ranks that do not answer that.

        No operation between ranks begins from now on.  Ranks get the time to come to the next; those that have come to
        none yet, while others have, are cancelled only if they do not.  Signals and output wait until this is over: an
        exception in its midst would leave ranks in front of operations, or cut them in the midst of one.
        """
        with DeferredSignals():
            self._held, self._operations.cancelled = [], True
            self.interrupted, self._client.interrupted = self._client.interrupted, False
            coming = [call for call, rank in self._ranks.items() if self._ends_later and not rank.wants]
            self._client.cancel(call for call in self._ranks if call not in coming)
            try:
                self._await_ends(coming)
            finally:
                self._client.cancel(coming)
                # Nobody comes to these any more; alone they would meet those of the training.
                left = [each for each in self._ranks if each.link.rank in self._operations.standing and not each.over]
                self._answer(dict.fromkeys(left, CANCELLED))
                self._client.forget(self._ranks)
        return [call.link for call in self._ranks if not call.over]

    def _await_ends(self, coming: list[Call]) -> None:
        begun = self._wanted_at = time.monotonic()
        while not self._all_over() and (now := time.monotonic()) < (last := self._last_moment(begun)):
            self._stay()
            if now >= begun + _COMING_S:
                self._client.cancel(coming)
                coming.clear()
            try:
                self._client.wait([*self._ranks], min(now + ANSWER_S, last), self._take, self._all_over)
            except Interrupted:
                self.interrupted = True

    def _last_moment(self, begun: float) -> float:
        """When cancelled ranks must have answered: agents give a snippet 2 s to come to an operation, in all 10 s."""
        return min(self._wanted_at + _ENDING_S, begun + _MOST_ENDING_S) if self._ends_later else begun + _GRACE_S

    def tell_rest(self) -> None:
        """What came during the withdrawal; and what of the output did not come, of ranks whose snippet has ended."""
        held, self._held = self._held or [], None
        for said in held:
            self._tell(*said)
        ended = [self._result(call) for call in self._ranks if call.answer is not None]
        if lost := losses(ended):
            self._tell([each.rank for each in ended if each.dropped_bytes], "waiting", "\n".join(lost))

    def results(self) -> EvalResult:
        return [self._result(call) for call in sorted(self._ranks, key=lambda call: call.link.rank)]

    def _result(self, call: Call) -> RankResult:
        done, count = call.result(), call.result().get("count")
        has_step = not self._snippet.now and count is not None and count >= 0 and done.get("ran", True)
        step = call.link.facts.step_base + int(count or 0) if has_step else None
        return RankResult.of(call.link.rank, done, "".join(self._ranks[call].output), step)
