"""Which way leads to each agent: through the server of its job and host, or to its own socket.

Called by handshake.  An agent on this host whose server is not there, does not answer or may only read is asked at its
own socket.  Invariant: a server is asked once which agents it serves, and an address of a server stands for all of
them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from .. import protocol as wire
from ..errors import ProbeError, SilentError
from ..host.facts import Facts
from ..host.job_server import server_url
from .agent_link import Header
from .client import Call, Client
from .endpoints import SERVER, Address

_SERVER_S = 1.0  # for the server of an agent on this host, which can be asked without it


def connect_all(client: Client, addresses: Sequence[Address], timeout: float) -> list[ProbeError]:
    """Make a link to each agent at these addresses; returns the errors of servers that the user has named."""
    ways = [(address, _server_of(address)) for address in addresses]
    begun = time.monotonic()
    asked = {url: _ask(client, address, url) for address, url in ways if url}
    named = [asked[url] for address, url in ways if url and not address.pid]
    client.wait(named, begun + timeout)
    client.wait(list(asked.values()), begun + min(_SERVER_S, timeout))
    client.forget(asked.values())
    errors = list[ProbeError]()
    for address, url in ways:
        if url and not address.pid:
            try:
                _connect_served(client, address, url, asked[url])
            except ProbeError as error:
                errors.append(error)
        else:
            through = url and asked[url].answer is not None and _controls(asked[url].result(), address.facts)
            client.connect(address, client.server(url) if through else None)
    return errors


def _server_of(address: Address) -> str:
    """The url of its server, "" without one."""
    if not address.pid:
        return address.url if address.url.startswith("tcp://") or address.url.endswith(SERVER) else ""
    return server_url(address.pid, address.facts)


def _ask(client: Client, address: Address, url: str) -> Call:
    itself = client.link(Address(url, shown=address.shown), client.server(url))
    ids = {"ids": [address.facts.id]} if address.facts.id else {}
    return client.send(itself, wire.AGENTS, protocol=wire.PROTOCOL, **ids)


def _controls(said: Header, facts: Facts) -> bool:
    return said["role"] == wire.CONTROL and any(agent["id"] == facts.id for agent in said["agents"])


def _connect_served(client: Client, address: Address, url: str, call: Call) -> None:
    """Links to all agents of a server, one of which is to name the job's others, if that is wanted."""
    if call.answer is None:
        raise call.error or call.link.silence()
    agents: Sequence[Mapping[str, object]] = call.answer["agents"]
    if not agents:
        raise SilentError(f"{call.link.name} serves no agent: its job has ended, or was detached.", code="gone")
    for said in agents:
        client.connect(Address(url, facts=Facts.parse(said), whole_job=address.whole_job), client.server(url))
