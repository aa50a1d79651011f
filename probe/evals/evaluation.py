"""An eval as the reader drives it: armed on every rank, then run by all of them at one step of the job.

Called by Connection.eval.  The life of an eval, message by message; agent/evals/ is the other side:

    the reader sends    a rank                                                  and answers
    arm                 keeps the snippet                                       armed: how far it is
    go, count           stops its training at the boundary after `count` steps  ready
    stay                waits 5 s longer for `run`
    run                 runs the snippet and goes on training                   out, done
    cancel              drops the snippet, or interrupts it if it has begun     error or done

`go` names a step that no rank has reached as far as is known; `run` goes out once all ranks are ready.  A rank that has
passed the step, or gets neither `stay` nor `run`, answers eval-missed: then all are cancelled, and if nothing has run
the next attempt names a later step.  For one rank, or ranks that share no process group, count is -1: each runs the
snippet at its next boundary without `ready` and `run`.  With --now it runs at `go`, on a thread of its own.

Invariant: whatever happens, no rank is left armed, and the caller hears within half a second after the time-out or
Ctrl-C, if need be which rank does not answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .. import protocol as wire
from ..client.agent_requests import chosen
from ..client.client import AgentLink, Call, Client, Header
from ..errors import EvalError, ProbeError, SilentError
from ..snapshot.align import Alignment, may_change, refresh

OnOutput = Callable[[list[int], str, str], None]
EvalResult = list["RankResult"]

_GRACE_S = 0.4  # for the answers to a cancel: with what else it takes, half a second
_ATTEMPTS = 4
STAYING_S = 2.0  # after the last `stay` an agent is sure to wait this long
_MARGIN = 2  # boundaries: one rank may be past the first before it hears of it
_SENDING_S = 0.02  # by which a busy machine may delay a message
_LOOK_S = 1.0
# A job counts as not stepping after this many usual steps, and at least so many seconds: checkpoints take a while
_PATIENCE, _PATIENCE_S = 10, 5.0
_FIRST_STEP_S = 10.0  # as long as nothing is known of its steps


@dataclass(frozen=True)
class RankResult:
    """What a snippet did on one rank; an EvalResult is a list of these, by rank.

    step: the job's steps completed when it ran, None if it ran at once; held_s: for how long training waited; output:
    all it printed; echo: repr of a last expression, None if there is none.

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


@dataclass(frozen=True)
class Snippet:
    """What to run and how, as the agents get it.  ranks: those that are to run it, None for the whole job."""

    code: str
    filename: str
    now: bool
    timeout: float | None
    write: bool
    by: str
    ranks: list[int] | None


def evaluate(
    client: Client, alignment: Alignment, snippet: Snippet, patience: float, on_output: OnOutput | None
) -> EvalResult:
    """Run it: on several ranks of a process group at one step of the job, for a collective in it would hang otherwise.

    A snippet that raises is a result, not an error.  Raises UsageError, EvalError, SilentError, Interrupted.
    """
    links = chosen(client.links, snippet.ranks)
    if not snippet.now:
        alignment.settle()
    together = not snippet.now and len(links) > 1 and any(link.facts.distributed for link in links)
    if together:
        alignment.same_steps(links)
    here = [link.rank for link in links]
    everyone = set(here) >= set(range(max(link.facts.world_size or 1 for link in links)))
    if snippet.ranks is not None or not everyone:  # an endpoint may be one rank of several
        snippet = replace(snippet, ranks=here)
    missed: BaseException | None = None
    for number in range(_ATTEMPTS):
        attempt = _Attempt(client, snippet, patience, on_output, together, number)
        try:
            attempt.arm(links)
            attempt.go()
            attempt.finish()
        except BaseException as error:
            stuck = attempt.withdraw()
            code = error.code if isinstance(error, ProbeError) else ""
            if code == "eval-missed" and not stuck and not attempt.anything_ran():
                missed = error
                continue
            if stuck and code in ("interrupted", "eval-timeout"):
                named, waits = ", ".join(stuck), "" if snippet.now else "; the job waits for it"
                message = f"The snippet did not stop on rank {named}: it is blocked in C{waits}."
                raise EvalError(message, "It ends when that call returns.", "eval-timeout") from None
            raise
        return attempt.results()
    raise EvalError(f"The ranks did not agree on a step: {missed}", "Run it with --now.", "eval-missed")


@dataclass
class _Rank:
    """A rank in one attempt.  armed: its answer to `arm`; count: its own number of the step to run at, -1 for its next
    boundary; ready: it stands at that step; output: what the snippet has printed."""

    armed: Header = field(default_factory=dict)
    count: int = -1
    ready: bool = False
    output: list[str] = field(default_factory=list)


class _Attempt:
    """One attempt: a call per armed rank, and what came of it.  together: at one step of the job; number: from 0."""

    def __init__(
        self, client: Client, snippet: Snippet, patience: float, on_output: OnOutput | None, together: bool, number: int
    ) -> None:
        self._client, self._snippet, self._patience, self._on_output = client, snippet, patience, on_output
        self._together, self._number = together, number
        self._ranks: dict[Call, _Rank] = {}
        self._round_trip = 0.0  # seconds that arm() took
        self._released = False
        self._stayed = time.monotonic()  # when the last `stay` went out

    def arm(self, links: Sequence[AgentLink]) -> None:
        """Every rank takes the snippet and says how far it is."""
        begun = time.monotonic()
        request = asdict(self._snippet)
        request["where"] = "now" if request.pop("now") else "boundary"
        code = request.pop("code").encode()
        self._ranks = {self._client.send(link, wire.ARM, code, **request): _Rank() for link in links}
        self._wait(begun + self._patience, lambda: all(rank.armed for rank in self._ranks.values()))
        if late := [call.link.number for call, rank in self._ranks.items() if not rank.armed]:
            raise SilentError(f"Rank {', '.join(late)} does not answer: nothing was run.")
        self._round_trip = time.monotonic() - begun

    def go(self) -> None:
        """Let it run: at once, at each rank's next boundary, or at one step of the job."""
        if not self._snippet.now:
            for call, rank in self._ranks.items():
                self._must_step(call, rank.armed.get("waiting"))
        if self._together:
            if any(call.link.facts.step_base != rank.armed["base"] for call, rank in self._ranks.items()):
                raise EvalError("the step numbers have just changed.", "", "eval-missed")
            completed = max(call.link.facts.step_base + int(rank.armed["count"]) for call, rank in self._ranks.items())
            step = completed + self._margin() * 4**self._number
            for call, rank in self._ranks.items():
                rank.count = step - call.link.facts.step_base
        for call, rank in self._ranks.items():
            self._client.send(call.link, wire.GO, of=call.id.decode(), count=rank.count)

    def _margin(self) -> int:
        """Boundaries from the furthest rank to the step to run at: no rank may pass it before `go` arrives."""
        said = [rank.armed for rank in self._ranks.values() if rank.armed.get("step_ns")]
        if not said:
            return _MARGIN
        steps = [each["step_ns"] / 1e9 for each in said]
        left = [step - (each.get("waiting") or 0) for step, each in zip(steps, said, strict=True)]
        needed = 5 * self._round_trip + _SENDING_S
        return 1 if min(left) > needed else _MARGIN + math.ceil(needed / min(steps))

    def finish(self) -> None:
        """Wait until all are done.  Raises EvalError at the time-out, or when the job does not step any more."""
        timeout = self._snippet.timeout
        end = math.inf if timeout is None else time.monotonic() + timeout
        if self._together:
            self._until(end, lambda: all(rank.ready for rank in self._ranks.values()))
            if time.monotonic() > self._stayed + STAYING_S:  # this process was stopped: they may have gone on
                raise EvalError("the ranks were not told in time.", "", "eval-missed")
            for call in self._ranks:
                self._client.send(call.link, wire.RUN, of=call.id.decode())
            self._released = True
        self._until(end, lambda: all(call.over for call in self._ranks))
        if time.monotonic() >= end and any(call.result().get("cancelled") for call in self._ranks):
            raise self._timed_out()  # the rank was the first to see it
        # ranks that had not stepped since their attach know only now what step the job has come to
        late = [call.link for call in self._ranks if may_change(call.link)] if not self._snippet.now else []
        refresh(self._client, late, time.monotonic() + self._patience)

    def _until(self, end: float, done: Callable[[], bool]) -> None:
        while not done():
            if time.monotonic() >= end:
                raise self._timed_out()
            if self._together and not self._released:
                self._stayed = time.monotonic()
                for call in self._ranks:
                    self._client.send(call.link, wire.STAY, of=call.id.decode())
            self._wait(min(end, time.monotonic() + _LOOK_S), done)
            if not self._snippet.now and not done():
                self._look_for_steps(min(end, time.monotonic() + self._patience))

    def _timed_out(self) -> EvalError:
        message = f"Cancelled after {self._snippet.timeout:g} s."
        return EvalError(message, "Allow more time: --timeout SECONDS", "eval-timeout")

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
        elif header["kind"] == wire.OUT:
            rank.output.append(str(header["text"]))
            if self._on_output is not None:
                self._on_output([call.link.rank], str(header["stream"]), str(header["text"]))

    def _look_for_steps(self, deadline: float) -> None:
        """A rank that still waits for its boundary must be stepping; one that stands there or runs need not."""
        waiting = [call for call, rank in self._ranks.items() if not call.over and (self._released or not rank.ready)]
        asked = {call: self._client.send(call.link, wire.HELLO, protocol=wire.PROTOCOL) for call in waiting}
        self._client.wait(list(asked.values()), deadline, self._take, lambda: all(call.over for call in self._ranks))
        self._client.forget(asked.values())
        for call, hello in asked.items():
            if hello.answer is not None and not call.over:
                facts, rank = hello.answer["facts"], self._ranks[call]
                target = rank.count if self._together else int(rank.armed["count"]) + 1
                # at its boundary, but nothing runs there: its loop does not turn, perhaps after a training's last step
                if facts.count < target or facts.idle:
                    since = facts.last_step_ns or facts.attached_ns
                    self._must_step(call, (facts.monotonic_ns - since) / 1e9)

    def _must_step(self, call: Call, since: float | None) -> None:
        """Raises EvalError if the rank's last boundary is much longer ago than usual."""
        facts, said = call.link.facts, self._ranks[call].armed
        if facts.torch is None:
            raise EvalError("The process has not imported torch and has no steps.", "Run it with --now.", "no-step")
        usual = (said.get("step_ns") or 0) / 1e9
        if since is None:  # no step since the attach
            since = (facts.monotonic_ns - facts.attached_ns) / 1e9
        if since <= (max(_PATIENCE * usual, _PATIENCE_S) if usual else _FIRST_STEP_S):
            return
        if holder := said.get("holder"):
            raise EvalError(f"A snippet of {holder} still holds the job.", "Wait for it; detach ends it too.", "held")
        known = f" (usually {usual:.2g} s)" if usual else ""
        where = f" on rank {call.link.rank}" if len(self._ranks) > 1 else ""
        raise EvalError(f"No step for {since:.0f} s{known}{where}.", "Run it with --now.", "no-step")

    def anything_ran(self) -> bool:
        return any(call.answer is not None or rank.output for call, rank in self._ranks.items())

    def withdraw(self) -> list[str]:
        """Cancel whatever is armed or runs; returns the ranks that do not answer that, for a message."""
        self._client.interrupted = False
        self._client.cancel(self._ranks)
        left = self._client.wait([*self._ranks], time.monotonic() + _GRACE_S, self._take)
        self._client.forget(self._ranks)
        return [call.link.number for call in left]

    def results(self) -> EvalResult:
        return [self._result(call) for call in sorted(self._ranks, key=lambda call: call.link.rank)]

    def _result(self, call: Call) -> RankResult:
        done, count = call.result(), call.result().get("count")
        has_step = not self._snippet.now and count is not None and count >= 0
        return RankResult(
            rank=call.link.rank,
            ok=done["ok"],
            output="".join(self._ranks[call].output),
            echo=done.get("echo"),
            error=done.get("error"),
            traceback=done.get("traceback"),
            step=call.link.facts.step_base + int(count or 0) if has_step else None,
            held_s=(done.get("held_ns") or 0) / 1e9,
            changed=done.get("changed") or [],
            dropped_bytes=done.get("dropped_bytes") or 0,
        )
