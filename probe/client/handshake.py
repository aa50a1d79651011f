"""The first word to every agent: who answers, who does not, and who is not worth waiting for.

Called by probe.connection.  Invariant: every link has its facts afterwards, or why it is silent; a connection of which
nothing can be asked or read is refused.
"""

from __future__ import annotations

import getpass
import os
import time

from .. import protocol as wire
from ..errors import EndpointError, SilentError
from ..host import agent_memory
from ..version import __version__
from .client import AgentLink, Call, Client, nobody
from .peers import check_ranks, find_peers

_QUIET_S = 3.0  # an agent writes down how it is once a second
_PATIENCE_S = 3.0  # with one that has not; it may come back
_MOMENT_S = 0.02  # an attach stops a thread for some milliseconds


def greet(client: Client, timeout: float) -> None:
    """Raises SilentError where no rank answers and none has memory that could be read, and where an agent of which
    nothing is known, not even its rank, does not; EndpointError where agents belong to different jobs."""
    calls = _hello(client, client.links, timeout)
    for known in [link for link in client.links if link.address.whole_job]:
        peers = find_peers(client, known, timeout)
        calls += _hello(client, peers, timeout)
        check_ranks(peers)
    _keep_one_of_each(client)
    if all(link.gone or (link.silent and not _lies_in_memory(link)) for link in client.links):
        raise nobody(calls)


def _hello(client: Client, links: list[AgentLink], timeout: float) -> list[Call]:
    calls: list[Call] = []
    for seconds, those in _by_patience(links, timeout).items():
        calls += client.ask(
            wire.HELLO, time.monotonic() + seconds, those, protocol=wire.PROTOCOL, version=__version__, by=whoami()
        )
    for call in calls:
        if call.answer is not None:
            call.link.welcome(call.answer)
        elif call.error is not None and not call.link.facts:
            raise call.error
        else:
            call.link.silent = call.link.why_silent()
            call.link.gone |= not isinstance(call.error, SilentError)  # it speaks, but another protocol
    return calls


def _keep_one_of_each(client: Client) -> None:
    """An agent that was named twice counts once; ranks of different jobs cannot be one job."""
    agents: dict[object, AgentLink] = {}
    ranks: dict[int, AgentLink] = {}
    for link in list(client.links):
        if agents.setdefault(link.facts.get("id", link), link) is not link:
            client.drop(link)
        elif (other := ranks.setdefault(link.rank, link)) is not link:
            where = " and ".join(each.name for each in (other, link))
            raise EndpointError(f"These agents are not of one job: {where}.", "Ask each job by itself.", "rank-twice")


def _by_patience(links: list[AgentLink], timeout: float) -> dict[float, list[AgentLink]]:
    """Seconds to wait for the answer -> links, the shortest first."""
    found: dict[float, list[AgentLink]] = {}
    stopped = [link for link in links if link.stopped]
    time.sleep(_MOMENT_S if stopped else 0)
    for link in stopped:
        link.silent = link.why_silent() if link.stopped else ""
    for link in links:
        found.setdefault(min(timeout / 2, _PATIENCE_S) if _is_quiet(link) else timeout, []).append(link)
    return dict(sorted(found.items()))


def _is_quiet(link: AgentLink) -> bool:
    """Whether an agent of this machine has not written down for long how it is."""
    since_ns = time.monotonic_ns() - int(link.facts.get("monotonic_ns") or 0)
    return link.here and since_ns > _QUIET_S * 1e9


def _lies_in_memory(link: AgentLink) -> bool:
    return link.here and agent_memory.facts(link.pid) is not None


def whoami() -> str:
    """Who asks, for the others to read in probe.evals."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        name = str(os.getuid())
    return f"{name}, pid {os.getpid()}"
