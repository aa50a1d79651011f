"""Requests that go to every agent of a job and change it as a whole, and what has to be true before they are sent.

Called by probe.connection.  Invariant: a request that some agent must refuse is not sent to any.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import protocol as wire
from ..errors import AgentError, DetachError, SilentError, UsageError
from ..host import agent_memory
from ..host.job_server import server_url
from ..settings import checked_settings
from .agent_link import AgentLink, nobody
from .client import Call, Client, OnReply

_MEMORY_FREED_S = 1.0
_SERVER_ENDS_S = 2.0  # it looks for its agents once a second
_END_IT = "Its command may be stopped with Ctrl-C; code that is blocked in C ends when that call returns."
_DETACH_S = 15.0  # the target removes kernels at a boundary; if none comes, it says so by then


@dataclass(frozen=True)
class Unreached:
    """A rank that a request did not reach, and why.  host: "" for this machine, on which pid is then valid.

    Example: `[each.rank for each in job.unreached]`
    """

    rank: int
    pid: int
    host: str
    why: str


def require_agents(links: Sequence[AgentLink], endpoint: str, what: str, control: bool) -> None:
    """Raises UsageError if there are only recorded ranks, and for `control` AgentError if the key may only read.

    Agents refuse too; this names the call, before any has begun.
    """
    if not links:
        hint = f'It can be queried: probe {endpoint} query "SELECT …"'
        raise UsageError(f"{endpoint} is a recording, without agents: no {what}.", hint, "recording")
    barred = next((link for link in links if link.role != wire.CONTROL), None)
    if control and barred is not None:
        hint = "That takes the whole key, as probe key create made it."
        raise AgentError(f"{barred.name}: this key may read, not control: no {what}.", hint, "read-only")


def chosen(links: Iterable[AgentLink], ranks: Iterable[int] | None) -> list[AgentLink]:
    """The links to these ranks (None: all), by rank.  Raises UsageError for none or one that is not there, SilentError
    for one that does not answer."""
    by_rank = {link.rank: link for link in sorted(links, key=lambda link: link.rank)}
    wanted = set(by_rank if ranks is None else ranks)
    there = f"Ranks: {', '.join(map(str, by_rank))}"
    if absent := wanted - by_rank.keys():
        raise UsageError(f"There is no rank {', '.join(map(str, sorted(absent)))}.", there)
    if not wanted:
        raise UsageError("No rank is given.", there)
    found = [link for rank, link in by_rank.items() if rank in wanted]
    if silent := next((link for link in found if link.silent), None):
        raise silent.refused or SilentError(f"{silent.name} {silent.silent}: nothing was run.")
    return found


def unreached(client: Client, calls: Sequence[Call]) -> list[Unreached]:
    """The ranks that were silent before, and those that gave no answer to these calls.

    A rank that has answered and then ended, as each does that is detached, was reached.
    """
    answered = {call.link for call in calls if call.answer is not None}
    why = {link: f"{link.name} {link.silent}" for link in client.links if link.silent and link not in answered}
    why |= {call.link: str(call.error).rstrip(".") for call in calls if call.answer is None}
    return [Unreached(link.rank, link.pid, link.host, told) for link, told in why.items()]


def wait_for_each(client: Client, calls: Sequence[Call], patience: float, on_reply: OnReply | None = None) -> None:
    """Until all have large answers: the patience runs anew with each.  What does not come has an error."""
    late, count = [*calls], 0
    while late and len(late) != count:
        count = len(late)
        late = client.wait(late, time.monotonic() + patience, on_reply, partial(_is_any_over, late))
    for call in late:
        call.error = call.link.silence()
    client.forget(calls)


def _is_any_over(calls: Sequence[Call]) -> bool:
    return any(call.over for call in calls)


def tensors(
    client: Client, wait_s: float, timeout: float
) -> tuple[dict[int, list[Mapping[str, Any]]], list[Unreached]]:
    """What each rank lists that answers, the look before it first if there was one; and the ranks that do not.

    Raises SilentError if none answers.
    """
    calls = [client.send(link, wire.TENSORS, wait_s=wait_s, compare=True) for link in client.links]
    found: dict[Call, list[Mapping[str, Any]]] = {call: [] for call in calls}
    wait_for_each(client, calls, wait_s + timeout, lambda call, header, payload: found[call].append(header))
    answered = {call: call.answer for call in calls if call.answer is not None}
    if not answered:
        raise nobody([call.error for call in calls])
    return {call.link.rank: [*found[call], answer] for call, answer in answered.items()}, unreached(client, calls)


def set_sampling(
    client: Client, settings: Mapping[str, Any], timeout: float
) -> tuple[list[dict[str, Any]], list[Unreached], list[str]]:
    """The settings of each rank that answers, the ranks that did not, and what the user should know.

    Raises UsageError for unknown settings, SilentError if no rank answers.
    """
    checked = checked_settings(settings)
    calls = client.ask(wire.SET, time.monotonic() + timeout, settings=checked)
    answers = {call.link.rank: call.answer for call in calls if call.answer is not None}
    if not answers:
        raise nobody([call.error for call in calls])
    left = unreached(client, calls)
    notes = [
        f"{name}={settings[name]} is taken as {value}" for name, value in checked.items() if value != settings[name]
    ]
    notes += [each.why for each in left]
    return [{"rank": rank, **answer["settings"]} for rank, answer in answers.items()], left, notes


def detach(client: Client, timeout: float) -> tuple[list[str], list[Unreached], DetachError | None]:
    """What had to stay in which rank, the ranks that are still attached, and why if that is because of a snippet.

    Waits until the agents are gone: those that have confirmed the detach free their memory last.
    """
    calls = client.ask(wire.DETACH, time.monotonic() + max(timeout, _DETACH_S))
    answers = {call.link: call.answer for call in calls if call.answer is not None}
    end = time.monotonic() + _MEMORY_FREED_S
    for link in answers:
        while link.here and agent_memory.descriptors(link.pid) and time.monotonic() < end:
            time.sleep(0.001)
    _await_servers([link for link in answers if link.here])
    left = [f"rank {link.rank}: {line}" for link, answer in answers.items() for line in answer["left"]]
    held = [str(call.error) for call in calls if isinstance(call.error, DetachError)]
    error = DetachError(f"Still attached: {'; '.join(held)}", _END_IT) if held else None
    return left, unreached(client, calls), error


def _await_servers(links: Sequence[AgentLink]) -> None:
    """Wait for the end of servers whose last agents these were."""
    named = {link.facts.server: link for link in links if link.facts.server}
    needed = {facts.server for _, facts in agent_memory.attached()} if named else set()
    end = time.monotonic() + _SERVER_ENDS_S
    for server, link in named.items():
        while server not in needed and time.monotonic() < end and server_url(link.pid, link.facts):
            time.sleep(0.005)
