"""Another server for agents that run: where a job has lost its own, or is to listen for other hosts.

Called by probe.control.  Invariant: a server is started only once an agent names it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import protocol as wire
from ..client.agent_link import AgentLink, nobody
from ..client.client import Client
from ..errors import ProbeError, UsageError
from ..host.job_server import server_url
from ..keys import read
from ..settings import may_serve
from ..text import grouped
from .jobs import job_of, prepare
from .launch import Prepared


def restore(client: Client, timeout: float) -> list[str]:
    """Start the server of each job on this host whose agents had to be asked directly, because it has none.

    A line about what keeps a lost one from starting again, if anything does; none where the settings want no servers.
    """
    if not may_serve():
        return []
    try:
        _restore(client, timeout)
    except (OSError, ProbeError) as error:
        if not any(link.asked_directly and link.facts.served for link in client.links):
            return []  # attached without one: that was wanted, or told
        return [f"No server beside the job: {str(error).rstrip('.')}. Its agents answer themselves."]
    return []


def _restore(client: Client, timeout: float) -> None:
    asked = [link for link in client.links if link.asked_directly and link.role == wire.CONTROL and not link.silent]
    lacking = [link for link in asked if not server_url(link.pid, link.facts)]
    for links in grouped((job_of(link.pid), link) for link in lacking).values():
        with prepare(links[0].pid, _listened(links[0])) as prepared:
            if _tell(client, links, prepared, timeout):
                prepared.start()


def serve(
    client: Client, listen: Mapping[str, Any] | None, timeout: float,
    on_ready: Callable[[list[str]], object] | None, in_this_process: Callable[[], None] | None,
) -> list[str]:  # fmt: skip
    """Another server in place of the one that the agents have; its endpoints, which on_ready gets first.

    in_this_process: close the connection with it, and be the server until it ends.  Raises what _replaced() does.
    """
    with _replaced(client, listen, timeout) as server:
        if on_ready is not None:
            on_ready(server.endpoints)
        if in_this_process is not None:
            in_this_process()
            server.run()
        else:
            server.start()
    return server.endpoints


def _replaced(client: Client, listen: Mapping[str, Any] | None, timeout: float) -> Prepared:
    """Another server for these agents, in place of the one that they have; its process is still to be started.

    Raises UsageError for agents of another host, AttachError, OSError, and what the first agent says if none agrees.
    """
    far = next((link for link in client.links if not link.here), None)
    if far is not None:
        raise UsageError(f"{far.name} runs on another host.", "Run it there: its server is beside the job.")
    prepared = prepare(client.links[0].pid, listen)
    try:
        _tell(client, client.links, prepared, timeout)
    except BaseException:
        prepared.close()
        raise
    return prepared


def _tell(client: Client, links: Sequence[AgentLink], prepared: Prepared, timeout: float) -> bool:
    """Whether any of the agents knows of its server now.  Raises the error of the first if none does."""
    calls = client.ask(wire.SERVE, time.monotonic() + timeout, links, served=prepared.served)
    if not any(call.answer for call in calls):
        raise nobody([call.error for call in calls])
    return True


def _listened(link: AgentLink) -> Mapping[str, Any] | None:
    """Where its server listened for other hosts, if the key of that is still there and may be read."""
    port = link.facts.served and link.facts.served["tcp"]
    if not port or not os.path.isfile(port["key_file"]):  # the job says where: it may be a device, or a pipe
        return None
    try:
        key = read(port["key_file"]).of_server()
    except UsageError:
        return None
    where = {name: port[name] for name in ("host", "address", "port")}
    return {**key, **where} if key["public"] == port["public"] else None
