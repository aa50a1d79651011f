"""An eval as the reader drives it: armed on every rank, then run by all at one step of the job.

Called by Connection.eval.  Three phases: every rank says where it stands; `go` names a step that none of them has
reached, as far as is known; once all have stopped at it they are told to `run`, else none is.  Invariant: whatever
happens, no rank is left armed, and the caller hears within half a second after the time-out or Ctrl-C, if need be
which rank does not answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import protocol as wire
from ..client.client import AgentLink, Call, Client, Header
from ..errors import EvalError, Interrupted, ProbeError, SilentError
from ..snapshot.align import may_change

OnOutput = Callable[[list[int], str, str], None]

_GRACE_S = 0.4  # for the answers to a cancel: with what else it takes, half a second
_ATTEMPTS = 4
_STAYING_S = 2.0  # after the last `stay` an agent is sure to wait for the word this long
_MARGIN = 2  # boundaries: one rank may be past the first before it hears of it
_SENDING_S = 0.02  # a busy machine's delay of a message
_PATIENCE = 10  # usual steps, and at least
_PATIENCE_S = 1.0  # a second, after which a job counts as not stepping
_FIRST_STEP_S = 10.0  # as long as nothing is known of its steps


@dataclass(frozen=True)
class RankResult:
    """What a snippet did on one rank; an EvalResult is a list of these, by rank.

    step: number of the job's steps completed when it ran, None if it ran at once; held_s: how long; output: all it
    printed; echo: repr of a last expression, None if there is none.

    Example: `[(each.rank, each.echo) for each in job.eval("loss.item()")]`
    """

    rank: int
    ok: bool
    output: str
    echo: str | None
    error: str | None
    traceback: str | None
    step: int | None
    held_s: float
    changed: list[str] = field(default_factory=list)
    dropped_bytes: int = 0


EvalResult = list[RankResult]


@dataclass(frozen=True)
class Snippet:
    """What to run and how, as the agents are told."""

    code: str
    filename: str
    now: bool
    timeout: float | None
    write: bool
    by: str
    ranks: list[int] | None

    def request(self) -> Header:
        where = "now" if self.now else "boundary"
        fields = {"code": self.code, "filename": self.filename, "timeout": self.timeout, "write": self.write}
        return {**fields, "by": self.by, "ranks": self.ranks, "where": where}


def evaluate(
    client: Client,
    links: Sequence[AgentLink],
    snippet: Snippet,
    together: bool,
    patience: float,
    on_output: OnOutput | None,
) -> EvalResult:
    """Run it on these ranks; together: at one step of the job, for a collective in it would hang otherwise.

    A snippet that raises is a result, not an error.  Raises EvalError, SilentError, Interrupted.
    """
    missed: ProbeError | None = None
    for attempt in range(_ATTEMPTS):
        run = _Run(client, links, snippet, patience, on_output)
        try:
            run.arm()
            run.go(together, attempt)
            run.finish()
        except BaseException as error:
            stuck = run.withdraw()
            if isinstance(error, ProbeError) and error.code == "eval-missed" and not stuck and not run.anything_ran:
                missed = error
                continue
            raise (_stuck(snippet, stuck) if stuck and _ended_by_us(error) else error) from None
        return run.results()
    raise EvalError(f"The ranks did not agree on a step: {missed}", "Run it with --now.", "eval-missed")


def _ended_by_us(error: BaseException) -> bool:
    return isinstance(error, Interrupted) or (isinstance(error, EvalError) and error.code == "eval-timeout")


def _stuck(snippet: Snippet, links: Sequence[AgentLink]) -> EvalError:
    waits = "" if snippet.now else "; the job waits for it"
    message = f"The snippet does not react to the cancel on rank {_named(links)}: it is blocked in C{waits}."
    return EvalError(message, "It ends when that call returns.", "eval-timeout")


def _named(links: Sequence[AgentLink]) -> str:
    return ", ".join(link.number for link in links)


class _Run:
    """One attempt: a call an armed rank, and what came of it."""

    def __init__(
        self, client: Client, links: Sequence[AgentLink], snippet: Snippet, patience: float, on_output: OnOutput | None
    ) -> None:
        self._client, self._links, self._snippet = client, links, snippet
        self._patience, self._on_output = patience, on_output
        self._calls: list[Call] = []
        self._armed: dict[Call, Header] = {}
        self._ready: set[Call] = set()
        self._released = False
        self._stayed = time.monotonic()  # when the ranks were last told to
        self._output: dict[Call, list[str]] = {}
        self._target: dict[Call, int] = {}
        self._round_trip = 0.0

    def arm(self) -> None:
        """Every rank takes the snippet and says how far it is."""
        begun = time.monotonic()
        self._calls = [self._client.send(link, wire.ARM, **self._snippet.request()) for link in self._links]
        self._output = {call: [] for call in self._calls}
        self._wait(begun + self._patience, lambda: len(self._armed) == len(self._calls))
        late = [call.link for call in self._calls if call not in self._armed]
        if late:
            raise SilentError(f"Rank {_named(late)} does not answer: nothing was run.")
        self._round_trip = time.monotonic() - begun

    def go(self, together: bool, attempt: int) -> None:
        """Let it run: at once, at each rank's next boundary, or at one step of the job."""
        if not self._snippet.now:
            for call in self._calls:
                self._must_step(call, self._armed[call].get("waiting"))
        if together:
            if any(_base(call.link) != self._armed[call]["base"] for call in self._calls):
                raise EvalError("the numbers of the steps have just changed.", "", "eval-missed")
            completed = max(_base(call.link) + int(self._armed[call]["count"]) for call in self._calls)
            step = completed + self._margin() * 4**attempt
            self._target = {call: step - _base(call.link) for call in self._calls}
        for call in self._calls:
            self._client.send(call.link, wire.GO, of=call.id.decode(), count=self._target.get(call, -1))

    def _margin(self) -> int:
        """Boundaries from the furthest rank to the step to run at: no rank may pass it before `go` arrives."""
        says = [self._armed[call] for call in self._calls]
        steps = [say["step_ns"] / 1e9 for say in says if say.get("step_ns")]
        if not steps:
            return _MARGIN
        left = [say["step_ns"] / 1e9 - (say.get("waiting") or 0) for say in says if say.get("step_ns")]
        needed = 5 * self._round_trip + _SENDING_S
        return 1 if min(left) > needed else _MARGIN + math.ceil(needed / min(steps))

    def finish(self) -> None:
        """Wait for the end of all.  Raises EvalError at the time-out, or when the job does not step any more."""
        timeout = self._snippet.timeout
        end = math.inf if timeout is None else time.monotonic() + timeout
        if self._target:
            self._until(end, lambda: len(self._ready) == len(self._calls))
            self._release()
        self._until(end, lambda: all(call.over for call in self._calls))
        self._number()

    def _number(self) -> None:
        """Ranks that had not stepped since their attach know only now what step the job has come to."""
        late = [call.link for call in self._calls if may_change(call.link)] if not self._snippet.now else []
        for hello in self._client.ask(wire.HELLO, time.monotonic() + self._patience, late, protocol=wire.PROTOCOL):
            if hello.answer is not None:
                hello.link.facts = hello.answer["facts"]

    def _until(self, end: float, done: Callable[[], bool]) -> None:
        while not done():
            if time.monotonic() >= end:
                timeout = self._snippet.timeout
                raise EvalError(f"Cancelled after {timeout:g} s.", "Give it more: --timeout", "eval-timeout")
            if self._target and not self._released:
                self._stay()
            self._wait(min(end, time.monotonic() + _PATIENCE_S), done)
            if not self._snippet.now and not done():
                self._look_for_steps(min(end, time.monotonic() + self._patience))

    def _stay(self) -> None:
        """Tell the ranks that the word is still to come."""
        self._stayed = time.monotonic()
        for call in self._target:
            self._client.send(call.link, wire.STAY, of=call.id.decode())

    def _release(self) -> None:
        """All stand at the step.  A collective of some of them, while the others go on, would end the job."""
        if time.monotonic() > self._stayed + _STAYING_S:  # this process was stopped: they may have gone on
            raise EvalError("the ranks were not told in time.", "", "eval-missed")
        for call in self._calls:
            self._client.send(call.link, wire.RUN, of=call.id.decode())
        self._released = True

    def _wait(self, deadline: float, until: Callable[[], bool]) -> None:
        """Until the deadline or `until`; the first error of any rank ends it and is raised."""

        def failed() -> bool:
            return any(call.error is not None for call in self._calls)

        self._client.wait(self._calls, deadline, self._take, lambda: until() or failed())
        for call in self._calls:
            if call.error is not None:
                raise call.error

    def _take(self, call: Call, header: Header, payload: Sequence[Any]) -> None:
        if call not in self._output:
            return
        if header["kind"] == wire.ARMED:
            self._armed[call] = header
        elif header["kind"] == wire.READY:
            self._ready.add(call)
        elif header["kind"] == wire.OUT:
            self._output[call].append(str(header["text"]))
            if self._on_output is not None:
                self._on_output([call.link.rank], str(header["stream"]), str(header["text"]))

    def _look_for_steps(self, deadline: float) -> None:
        """A rank that still waits for its boundary must be stepping; one that runs the snippet need not."""
        stand = set() if self._released else self._ready
        waiting = [call for call in self._calls if not call.over and call not in stand]
        asked = {call: self._client.send(call.link, wire.HELLO, protocol=wire.PROTOCOL) for call in waiting}
        self._client.wait(list(asked.values()), deadline, self._take, lambda: all(call.over for call in self._calls))
        self._client.forget(asked.values())
        for call, hello in asked.items():
            if hello.answer is not None and not call.over:
                facts = hello.answer["facts"]
                target = self._target.get(call, int(self._armed[call]["count"]) + 1)
                # at its boundary, but nothing runs there: its loop does not turn, the last step of a training perhaps
                idle = "holder" in facts and facts["holder"] is None
                if int(facts["count"]) < target or idle:
                    since = facts.get("last_step_ns") or facts["attached_ns"]
                    self._must_step(call, (facts["monotonic_ns"] - since) / 1e9)

    def _must_step(self, call: Call, since: float | None) -> None:
        """Raises EvalError if the rank's last boundary is much longer ago than usual."""
        if call.link.facts.get("torch") is None:
            raise EvalError("The process has not imported torch and does not step.", "Run it with --now.", "no-step")
        usual = (self._armed[call].get("step_ns") or 0) / 1e9
        if since is None:  # no step since the attach
            facts = call.link.facts
            since = (int(facts["monotonic_ns"]) - int(facts["attached_ns"])) / 1e9
        if since > (max(_PATIENCE * usual, _PATIENCE_S) if usual else _FIRST_STEP_S):
            holder = self._armed[call].get("holder")
            if holder:
                raise EvalError(
                    f"A snippet of {holder} still holds the job.", "Wait until it ends; detach ends it too.", "held"
                )
            known = f" (usually {usual:.2g} s)" if usual else ""
            where = f" on rank {call.link.rank}" if len(self._calls) > 1 else ""
            raise EvalError(f"No step for {since:.0f} s{known}{where}.", "Run it with --now.", "no-step")

    @property
    def anything_ran(self) -> bool:
        return any(call.answer is not None for call in self._calls) or any(self._output.values())

    def withdraw(self) -> list[AgentLink]:
        """Cancel whatever is armed or runs; the ranks that do not answer that."""
        self._client.interrupted = False
        self._client.cancel(self._calls)
        left = self._client.wait(self._calls, time.monotonic() + _GRACE_S, self._take)
        self._client.forget(self._calls)
        return [call.link for call in left]

    def results(self) -> EvalResult:
        return sorted((self._result(call) for call in self._calls), key=lambda result: result.rank)

    def _result(self, call: Call) -> RankResult:
        done = call.result()
        count = done.get("count")
        return RankResult(
            rank=call.link.rank,
            ok=bool(done["ok"]),
            output="".join(self._output[call]),
            echo=done.get("echo"),
            error=done.get("error"),
            traceback=done.get("traceback"),
            step=None if self._snippet.now or count is None or count < 0 else _base(call.link) + int(count),
            held_s=int(done.get("held_ns") or 0) / 1e9,
            changed=list(done.get("changed") or []),
            dropped_bytes=int(done.get("dropped_bytes") or 0),
        )


def _base(link: AgentLink) -> int:
    return int(link.facts.get("step_base") or 0)
