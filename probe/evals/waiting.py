"""How long an eval waits for a step that does not come, and what it tells meanwhile of what the job does instead.

Made by evaluate().  Invariant: an eval whose step can still come is not given up before its time is over; and only the
rank that has stood longest is asked for its stacks, once it has stood for a second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from ..client.client import AgentLink, Client
from ..errors import EvalError
from ..host.facts import Facts
from ..snapshot.live_stacks import live_stacks
from ..snapshot.stacks import Frame, Thread, training_thread
from ..text import short
from .snippet import OnOutput

LOOK_S, ANSWER_S = 0.5, 0.5  # how often ranks that wait are looked at, and how long for their answers
_UNTOLD_S, _AGAIN_S = 1.0, 10.0  # from when on it is told what the job does, and how often if that does not change
_PATIENCE_S, _PATIENCE = 30.0, 10  # without a time-out: so long, and so many usual steps
_LATER = "Allow more time: --timeout SECONDS; or run it beside the training: --now"
_MODULE_CALL = "torch/nn/modules/module.py"
_NEVER_MEANT = ("torch/", "torchrun", "runpy.py", "contextlib.py", "<")  # wrappers around what users and trainers call


class Waiting:
    """Of one eval, from its beginning.  on_output: is given a line, as of the stream `waiting`, when there is news."""

    def __init__(self, client: Client, timeout: float | None, on_output: OnOutput | None) -> None:
        self._client, self._timeout, self._on_output = client, timeout, on_output
        self._begun, self._is_armed = time.monotonic(), False
        self._seen: dict[AgentLink, list[Frame]] = {}  # the frames that it was in at every look
        self._told, self._told_at = "", 0.0

    def armed(self) -> None:
        """All ranks have the snippet: the time counts from here, unless it has already been told of a wait."""
        if not self._is_armed and not self._told:
            self._begun = time.monotonic()
        self._is_armed = True

    @property
    def end(self) -> float | None:
        """When the eval's time is over, if it has a time-out."""
        return None if self._timeout is None else self._begun + self._timeout

    def look(self, links: Sequence[AgentLink], on_reply: Any = None) -> None:
        """These ranks, whose facts have just come, have not reached the step.  Raises EvalError if time is over."""
        late = max(links, key=lambda link: _stands_s(link.facts), default=None)
        now = time.monotonic()
        if late is None or min(now - self._begun, _stands_s(late.facts)) < _UNTOLD_S:
            return
        place = self._place(late, on_reply)
        if now >= self._last_moment(late.facts):
            raise self._given_up(late, place)
        what = f"{self._name(late)} is {place}" if place else f"no step on {self._name(late)}"
        if holder := late.facts.holder:
            what = f"a snippet of {holder} holds {self._name(late)}"
        if self._on_output is not None and (what != self._told or now >= self._told_at + _AGAIN_S):
            self._told, self._told_at = what, now
            self._on_output([late.rank], "waiting", f"waiting for a step: {what}, {_age(late.facts)}\n")

    def _last_moment(self, facts: Facts) -> float:
        if self._timeout is not None:
            return self._begun + self._timeout
        return self._begun + max(_PATIENCE_S, _PATIENCE * (facts.step_ns or 0) / 1e9)

    def _given_up(self, link: AgentLink, place: str) -> EvalError:
        facts = link.facts
        if facts.holder:
            message = f"A snippet of {facts.holder} still holds {self._name(link)}."
            return EvalError(message, "Wait for it, with --timeout SECONDS; detach ends it too.", "held")
        where = f" on rank {link.rank}" if len(self._client.links) > 1 else ""
        there = f": it is {place}" if place else ""
        if facts.moved_ns is None:
            return EvalError(f"No step since the attach{where}{there}.", _LATER, "no-step")
        step_s = (facts.step_ns or 0) / 1e9
        usual = f" (usually {step_s:{'.0f' if step_s >= 10 else '.2g'}} s)" if facts.step_ns else ""
        return EvalError(f"No step for {_stands_s(facts):.0f} s{usual}{where}{there}.", _LATER, "no-step")

    def _name(self, link: AgentLink) -> str:
        return f"rank {link.rank}" if len(self._client.links) > 1 else "the job"

    def _place(self, link: AgentLink, on_reply: Any) -> str:
        """In which function it has been since the first look; "" where it does not say."""
        thread = training_thread(self._threads(link, on_reply))
        if thread is None:
            return ""
        frames = _helpers(thread.frames)
        known = self._seen.get(link, frames)
        same = takewhile(lambda pair: _code(pair[0]) == _code(pair[1]), zip(frames, known, strict=False))
        self._seen[link] = frames = [frame for frame, _ in same] or frames[:1]
        meant = [frame for frame in frames if not short(frame.file).startswith(_NEVER_MEANT)] or frames
        return f"{'compiling ' * thread.is_compiling}in {meant[-1]}" if meant else ""

    def _threads(self, link: AgentLink, on_reply: Any) -> Sequence[Thread]:
        return live_stacks(self._client, [link], time.monotonic() + ANSWER_S, on_reply)[0].get(link, ())


def where_it_is(client: Client, link: AgentLink, filename: str) -> str:
    """Where a snippet is that does not end, in words: its own frame, and the innermost one."""
    found, _ = live_stacks(client, [link], time.monotonic() + ANSWER_S)
    for thread in found.get(link, ()):
        own = next((frame for frame in thread.frames if frame.file == filename), None)
        if own is not None:
            return f"it is still in {own}" + (f", in {thread.frames[0]}" if own != thread.frames[0] else "")
    return "it does not answer"


def _helpers(frames: Sequence[Frame]) -> list[Frame]:
    """From the outermost frame to the first call of a module: the loop, and what it calls on its own."""
    outward = list(frames[::-1])
    calls = (at for at, frame in enumerate(outward) if short(frame.file) == _MODULE_CALL)
    return outward[: next(calls, len(outward))]


def _code(frame: Frame) -> tuple[str, str]:
    return frame.file, frame.function


def _stands_s(facts: Facts) -> float:
    """Seconds since its last step, or since the attach."""
    return (facts.monotonic_ns - (facts.moved_ns or facts.attached_ns)) / 1e9


def _age(facts: Facts) -> str:
    return f"{_stands_s(facts):.0f} s after {'its last step' if facts.moved_ns else 'the attach'}"


def require_torch(links: Sequence[AgentLink]) -> None:
    """Raises EvalError if a rank never will come to a step."""
    if any(link.facts.torch is None for link in links):
        raise EvalError("The process has not imported torch and has no steps.", "Run it with --now.", "no-step")
