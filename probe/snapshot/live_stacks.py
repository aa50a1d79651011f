"""The Python stacks of ranks as they are now, read from outside: here, or by a process beside the job on its host.

Called for `probe stack`, `probe hang`, python.stack, and by an eval that waits.  Read from outside, a thread is seen
wherever it is, and a rank that holds its GIL, is stopped or does not answer has stacks like any other.  Invariant: the
job runs nothing for it; an agent is asked only for its memory, where that may not be read without it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from .. import protocol as wire
from ..client.agent_requests import Unreached, unreached
from ..client.client import AgentLink, Client, OnReply
from ..client.endpoints import address_of
from ..errors import AgentError, ProbeError
from ..host import agent_memory
from ..host.facts import Facts
from ..host.processor_use import Load
from ..profile.code_objects import Layout
from ..profile.handed_over import handed_over
from ..profile.memory import Memory, memory_of
from ..profile.moment import ThreadNow, threads_now
from .log import Objects, stored_log
from .stacks import Frame, Thread, in_order, threads_of

_AGENTS = "probe-agent"  # as the kernel has it
_LEAST_S = 0.05  # for an agent's answer
STARTS_S = 4.0  # for a server to start the process that reads, on a busy host
_MOST_FRAMES = 200  # of a thread; of a deeper one the innermost are kept
Threads = dict[AgentLink, list[Thread]]
Errors = dict[AgentLink, ProbeError]


def live_stacks(
    client: Client,
    links: Sequence[AgentLink],
    deadline: float,
    on_reply: OnReply | None = None,
    starts_s: float = 0.0,
    loads: dict[AgentLink | int, Load] | None = None,
) -> tuple[Threads, Errors]:
    """The threads of each of these ranks, the main thread first; and why others have none.

    on_reply: gets replies to other requests that come meanwhile; starts_s: more patience with servers, each of which
    perhaps starts a process that reads; loads: gets those of ranks on other hosts.
    """
    found, errors = Threads(), Errors()
    for link in links:
        if link.readable or link.asked_directly:
            try:
                found[link] = _stacks_here(link, client.role, deadline)
            except ProbeError as error:
                errors[link] = error
    calls = [client.send(link, wire.STACKS) for link in links if link not in found and link not in errors]
    for call in client.wait(calls, deadline + starts_s, on_reply):
        call.error = call.link.silence()
    client.forget(calls)
    if loads is not None:
        told = {call: call.answer.get("load") for call in calls if call.answer is not None and not call.link.here}
        loads |= {call.link: Load.of(load, call.answered_at) for call, load in told.items() if load is not None}
    found |= {call.link: in_order(threads_of(call.answer)) for call in calls if call.answer is not None}
    return found, errors | {call.link: call.error for call in calls if call.error is not None}


def all_stacks(client: Client, timeout: float) -> tuple[dict[int, list[Thread]], list[Unreached]]:
    """Of every rank, by number; and the ranks whose agents did not answer, even if their stacks could be read."""
    calls = client.ask(wire.SNAPSHOT, time.monotonic() + timeout)  # writes the names of new threads, too
    found, errors = live_stacks(client, client.links, time.monotonic() + timeout, starts_s=STARTS_S)
    missed = unreached(client, calls)
    known = {each.rank for each in missed}
    missed += [
        Unreached(link.rank, link.pid, link.host, str(error).rstrip("."))
        for link, error in errors.items()
        if link.rank not in known
    ]
    return {link.rank: threads for link, threads in found.items()}, missed


def _stacks_here(link: AgentLink, role: str, deadline: float) -> list[Thread]:
    """Raises ProbeError."""
    if link.readable and (found := read_stacks(link.pid)) is not None:
        return found
    if link.silent:
        raise link.silence()
    url = address_of(link.pid, link.facts).url if link.here else link.address.url
    return handed_stacks(url, role, link.name, max(0.0, deadline - time.monotonic()) + _LEAST_S)


def read_stacks(pid: int) -> list[Thread] | None:
    """The threads of a process on this host; None if its memory may not be read, or makes no sense."""
    facts, log = agent_memory.facts(pid), stored_log(pid)
    if facts is None or facts.layout is None or log is None:
        return None
    memory = memory_of(pid, facts.layout["interp"])
    return None if memory is None else _threads(memory, facts.layout, log.threads, facts, pid)


def handed_stacks(url: str, role: str, name: str, timeout: float) -> list[Thread]:
    """Likewise, by the memory that its agent hands over.  role: as which it is asked; name: for errors.

    Raises SilentError, AgentError.
    """
    handed = handed_over(url.removeprefix("ipc://"), role, name, timeout)
    known = {int(each["ident"]): dict(each) for each in handed.threads}
    found = _threads(handed.memory, handed.layout, known, handed.facts, handed.facts.pid)
    if found is None:
        raise AgentError(f"The stacks of {name} could not be read: they changed all the time.", "Try again.")
    return found


def _threads(memory: Memory, layout: Layout, known: Objects, facts: Facts, pid: int) -> list[Thread] | None:
    """known: threads by ident, an ident being used again when a thread has ended; pid: as the reader sees it."""
    seen = threads_now(memory, layout)
    if seen is None:
        return None
    if not known:  # a job without threading: the thread that began the process is the main one
        known = {each.ident: _main(pid) for each in seen if each.native_id == facts.pid or len(seen) == 1}
    return in_order(_named(each, known, facts) for each in seen)


def _main(pid: int) -> dict[str, Any]:
    return {"native_id": pid, "name": "MainThread", "is_main": True}


def _named(seen: ThreadNow, known: Objects, facts: Facts) -> Thread:
    said: Mapping[str, Any] = {"name": _AGENTS} if seen.is_agents else known.get(seen.ident, {})
    if seen.native_id not in (0, said.get("native_id")) and not seen.is_agents:
        said = {}
    frames = tuple(Frame(frame.file, frame.line, frame.function) for frame in seen.frames)
    return Thread(
        seen.ident, seen.native_id or said.get("native_id"), said.get("name"), bool(said.get("is_main")),
        frames[:_MOST_FRAMES], len(frames[_MOST_FRAMES:]), seen.ident == facts.training, seen.holds_gil,
    )  # fmt: skip
