"""Traces of a function on several ranks at once: begun, watched, and ended or left on.

Called by probe.control.  Invariant: whatever ends a trace that is not to stay, no rank goes on with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .. import protocol as wire
from ..errors import AgentError, ProbeError
from .agent_link import AgentLink, nobody
from .agent_requests import Unreached, unreached
from .client import Call, Client

_LOOK_S = 0.25  # a function that is called too often has been found out by then
_PATIENCE_S = 1.0  # for one look, which tells the ranks that answer that somebody waits
_GRACE_S = 5.0  # after which a rank ends a trace by itself
_MOST_SUGGESTED = 3


@dataclass(frozen=True)
class RankTrace:
    """A function that a rank traces, or has traced.  calls: begun since start_ns, on the monotonic clock of its host;
    end_ns: 0 while it goes on; why_off: why it ended before its time.

    Example: `job.trace("app:handle", 5)[0].calls`
    """

    rank: int
    id: int
    function: str
    file: str
    line: int
    calls: int
    start_ns: int
    end_ns: int
    why_off: str


@dataclass(frozen=True)
class Wanted:
    """function: as the user names it; since: the attribute or argument with a time stamp, "" for none; keep: it stays
    on when the seconds are over."""

    function: str
    seconds: float
    since: str = ""
    keep: bool = False


Traces = dict[AgentLink, RankTrace]


def trace(
    client: Client, links: Sequence[AgentLink], wanted: Wanted, timeout: float
) -> tuple[list[RankTrace], list[Unreached]]:
    """The traces, and the ranks without one or whose trace took itself off.  Raises what kept the first from it, if
    there are none."""
    traces, errors = _begun(client, links, wanted, timeout)
    try:
        end = time.monotonic() + wanted.seconds
        look = time.monotonic() + _LOOK_S
        while time.monotonic() < end and any(not each.end_ns for each in traces.values()):
            client.sleep(min(end, look))
            if time.monotonic() >= look:
                traces |= _told(client, traces, None, min(timeout, _PATIENCE_S))[0]
                look = time.monotonic() + _LOOK_S
        told, lost = _told(client, traces, "keep" if wanted.keep else "stop", timeout)
    except BaseException:
        client.interrupted = False
        with suppress(ProbeError):
            _told(client, traces, "stop", timeout)
        raise
    traces, errors = traces | told, errors | lost
    errors |= {link: _ended(each) for link, each in traces.items() if each.why_off}
    found = [each for link, each in traces.items() if link not in errors]
    if not found:
        raise next(iter(errors.values()))
    return found, [Unreached(link.rank, link.pid, link.host, str(why).rstrip(".")) for link, why in errors.items()]


def change_all(client: Client, to: str | None, timeout: float) -> tuple[list[RankTrace], list[Unreached]]:
    """All traces that go on, which end now if `to` is "stop"; and the ranks that did not answer.  Raises SilentError if
    none did."""
    calls = client.ask(wire.TRACE, time.monotonic() + timeout, ids=None, to=to)
    answers = {call.link.rank: call.answer["traces"] for call in calls if call.answer is not None}
    if not answers:
        raise nobody([call.error for call in calls])
    found = [RankTrace(rank, **each) for rank, traces in answers.items() for each in traces]
    return found, unreached(client, calls)


def _begun(
    client: Client, links: Sequence[AgentLink], wanted: Wanted, timeout: float
) -> tuple[Traces, dict[AgentLink, ProbeError]]:
    fields = {"function": wanted.function, "since": wanted.since, "seconds": wanted.seconds + _GRACE_S}
    traces: Traces = {}
    errors: dict[AgentLink, ProbeError] = {}
    for call in client.ask(wire.TRACE, time.monotonic() + timeout, links, **fields):
        if call.answer is None:
            errors[call.link] = call.error or AgentError("No answer.")
        elif not call.answer["traces"]:
            errors[call.link] = _unknown(call.link, wanted.function, call.answer["names"])
        else:
            traces[call.link] = RankTrace(call.link.rank, **call.answer["traces"][0])
    return traces, errors


def _told(
    client: Client, traces: Mapping[AgentLink, RankTrace], to: str | None, timeout: float
) -> tuple[Traces, dict[AgentLink, ProbeError]]:
    """How the traces are, and the ranks that did not tell."""
    calls: list[Call] = [client.send(link, wire.TRACE, ids=[each.id], to=to) for link, each in traces.items()]
    client.forget(client.wait(calls, time.monotonic() + timeout))
    said: Any = {call.link: call.answer["traces"] for call in calls if call.answer is not None}
    lost = {call.link: call.error or call.link.silence() for call in calls if call.answer is None}
    return {link: RankTrace(link.rank, **found[0]) for link, found in said.items() if found}, lost


def _unknown(link: AgentLink, name: str, names: Sequence[str]) -> AgentError:
    """Its hint has the job's functions that are called almost so."""
    from difflib import get_close_matches

    last = {each: each.replace(":", ".").rpartition(".")[2] for each in names}
    close = get_close_matches(name, names, _MOST_SUGGESTED)
    similar = get_close_matches(name.replace(":", ".").rpartition(".")[2], set(last.values()), _MOST_SUGGESTED)
    close += [each for each in names if last[each] in similar and each not in close]
    hint = f"The job has {', '.join(close[:_MOST_SUGGESTED])}." if close else "Name it as module:function."
    return AgentError(f"Rank {link.rank} has no function {name}.", hint, "no-function")


def _ended(trace: RankTrace) -> AgentError:
    message = f"Rank {trace.rank}: {trace.function} is not traced any more: {trace.why_off}."
    return AgentError(message, "Its calls until then are rows of python.call_trace.", "trace-ended")
