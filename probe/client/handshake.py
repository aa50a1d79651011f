"""The first request to every agent, which finds out who answers, who does not, and for whom not to wait.

Called by probe.connection.  For job://, one agent knows the addresses of the others.  Invariant: afterwards every link
has facts or the reason for its silence, also that of a rank that has left no record of its address; a connection on
which nothing can be asked or read is refused.
"""

from __future__ import annotations

import getpass
import os
import time

from .. import protocol as wire
from ..errors import EndpointError, SilentError
from ..host import agent_memory
from ..host.facts import NO_FACTS, Facts
from ..version import __version__
from .client import AgentLink, Call, Client, nobody
from .endpoints import Address

_NO_RECORD = "has published no address: on its host, run probe attach --listen"
_QUIET_S = 3.0  # an agent updates its header once a second
_PATIENCE_S = 3.0  # with one that has not updated it; it may come back
_MOMENT_S = 0.02  # an attach stops a thread for some milliseconds


def greet(client: Client, timeout: float) -> None:
    """Raises SilentError if no rank answers and none has memory that can be read, or if an agent does not answer of
    which nothing is known, not even its rank; EndpointError if agents belong to different jobs."""
    calls = _hello(client, client.links, timeout)
    for known in [link for link in client.links if link.address.whole_job]:
        peers = _find_peers(client, known, timeout)
        calls += _hello(client, peers, timeout)
        _check_ranks(peers)
    _keep_one_of_each(client)
    if all(link.gone or (link.silent and not _lies_in_memory(link)) for link in client.links):
        raise nobody([call.error for call in calls])


def _hello(client: Client, links: list[AgentLink], timeout: float) -> list[Call]:
    calls: list[Call] = []
    for seconds, those in _by_patience(links, timeout).items():
        calls += client.ask(
            wire.HELLO, time.monotonic() + seconds, those, protocol=wire.PROTOCOL, version=__version__, by=whoami()
        )
    for call in calls:
        if call.answer is not None:
            call.link.welcome(call.answer)
        elif call.error is not None and call.link.facts == NO_FACTS:
            raise call.error
        else:
            call.link.silent = call.link.why_silent()
            call.link.gone |= not isinstance(call.error, SilentError)  # it answers, but in another protocol
    return calls


def _keep_one_of_each(client: Client) -> None:
    """Drop agents that were named twice.  Raises EndpointError if two have the same rank."""
    agents: dict[object, AgentLink] = {}
    ranks: dict[int, AgentLink] = {}
    for link in list(client.links):
        if agents.setdefault(link.facts.id or link, link) is not link:
            client.drop(link)
        elif (other := ranks.setdefault(link.rank, link)) is not link:
            where = " and ".join(each.name for each in (other, link))
            message = f"These agents belong to different jobs: {where}."
            raise EndpointError(message, "Ask each job by itself.", "rank-twice")


def _by_patience(links: list[AgentLink], timeout: float) -> dict[float, list[AgentLink]]:
    """Seconds to wait for an answer -> links, shortest first."""
    found: dict[float, list[AgentLink]] = {}
    stopped = [link for link in links if link.stopped]
    time.sleep(_MOMENT_S if stopped else 0)
    for link in stopped:
        link.silent = link.why_silent() if link.stopped else ""
    for link in links:
        found.setdefault(min(timeout / 2, _PATIENCE_S) if _is_quiet(link) else timeout, []).append(link)
    return dict(sorted(found.items()))


def _is_quiet(link: AgentLink) -> bool:
    """Whether an agent on this machine has not updated its header for long."""
    since_ns = time.monotonic_ns() - link.facts.monotonic_ns
    return link.here and since_ns > _QUIET_S * 1e9


def _lies_in_memory(link: AgentLink) -> bool:
    return link.here and agent_memory.facts(link.pid) is not None


def whoami() -> str:
    """Who asks, as others read it in probe.evals."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        name = str(os.getuid())
    return f"{name}, pid {os.getpid()}"


def _find_peers(client: Client, known: AgentLink, timeout: float) -> list[AgentLink]:
    """Links to the other ranks of an agent's job.  Raises AgentError, SilentError."""
    (call,) = client.ask(wire.PEERS, time.monotonic() + timeout, [known])
    if call.error is not None:
        told = f"{call.error.message.rstrip('.')}."
        raise type(call.error)(told, "Or name them all: tcp://HOST:PORT,tcp://HOST:PORT", call.error.code)
    ranks = call.result()["ranks"]
    links = []
    for rank, record in enumerate(ranks):
        if rank != known.rank:
            facts = Facts.parse({**(record or {}), "rank": rank})
            links.append(client.connect(Address(facts.endpoint or "", facts=facts)))
            if record is None:
                links[-1].silent, links[-1].gone = _NO_RECORD, True
    return links


def _check_ranks(links: list[AgentLink]) -> None:
    """A record may be stale, and another process listen at its address by now."""
    for link in links:
        if not link.silent and link.rank != link.address.facts.rank:
            link.disclaim(f"has ended: rank {link.rank} is at {link.address.url} now")
