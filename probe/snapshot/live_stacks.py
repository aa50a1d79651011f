"""The Python stacks of ranks as they are now: read from outside where a rank is on this host, else told by its agent.

Called for `probe stack`, `probe hang`, python.stack, and by an eval that waits.  Read from outside, a thread is seen
wherever it is, and a rank that holds its GIL, is stopped or does not answer has stacks like any other.  Invariant: a
rank costs its agent no more than one request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from .. import protocol as wire
from ..client.agent_requests import Unreached, unreached
from ..client.client import AgentLink, Call, Client
from ..host import agent_memory
from ..host.facts import Facts
from ..profile.moment import ThreadNow, threads_now
from .log import Objects, stored_log
from .stacks import Frame, Thread, in_order, threads_of

_AGENTS = "probe-agent"  # as the kernel has it
_MOST_FRAMES = 200  # of a thread; of a deeper one the innermost are kept
Threads = dict[AgentLink, list[Thread]]


def live_stacks(client: Client, links: Sequence[AgentLink], deadline: float) -> tuple[Threads, list[Call]]:
    """The threads of each of these ranks, the main thread first; and the requests to agents that were needed."""
    found: Threads = {}
    for link in links:
        if link.readable and (threads := stacks_of(link.pid)) is not None:
            found[link] = threads
    calls = client.ask(wire.STACKS, deadline, [link for link in links if link not in found and not link.silent])
    return found | {call.link: threads_of(call.answer) for call in calls if call.answer is not None}, calls


def all_stacks(client: Client, timeout: float) -> tuple[dict[int, list[Thread]], list[Unreached]]:
    """Of every rank, by number; and the ranks whose agents did not answer, even if their stacks could be read."""
    calls = client.ask(wire.SNAPSHOT, time.monotonic() + timeout)  # writes the names of new threads, too
    found, asked = live_stacks(client, client.links, time.monotonic() + timeout)
    late = [call for call in asked if call.answer is None]
    answered = [call for call in calls if call.link not in {each.link for each in late}]
    return {link.rank: threads for link, threads in found.items()}, unreached(client, [*answered, *late])


def stacks_of(pid: int) -> list[Thread] | None:
    """The threads of a process on this host, read from outside; None if they cannot be."""
    facts = agent_memory.facts(pid)
    if facts is None or facts.layout is None:
        return None
    seen, log = threads_now(pid, facts.layout), stored_log(pid)
    if seen is None or log is None:
        return None
    known = log.threads
    if not known:  # a job without threading: the thread that began the process is the main one
        known = {each.ident: _main(pid) for each in seen if each.native_id == facts.pid or len(seen) == 1}
    return in_order(_named(each, known, facts) for each in seen)


def _main(pid: int) -> dict[str, Any]:
    return {"native_id": pid, "name": "MainThread", "is_main": True}


def _named(seen: ThreadNow, known: Objects, facts: Facts) -> Thread:
    """known: threads by ident, an ident being used again when a thread has ended."""
    said: Mapping[str, Any] = {"name": _AGENTS} if seen.is_agents else known.get(seen.ident, {})
    if seen.native_id not in (0, said.get("native_id")) and not seen.is_agents:
        said = {}
    frames = tuple(Frame(frame.file, frame.line, frame.function) for frame in seen.frames)
    return Thread(
        seen.ident, seen.native_id or said.get("native_id"), said.get("name"), bool(said.get("is_main")),
        frames[:_MOST_FRAMES], len(frames[_MOST_FRAMES:]), seen.ident == facts.training, seen.holds_gil,
    )  # fmt: skip
