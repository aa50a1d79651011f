"""job://: one agent tells where the others of its job are.

Called by probe.client.handshake.  Invariant: every rank of the job is a link afterwards; who has left no record is one
that is silent, and says why.
"""

from __future__ import annotations

import time
from typing import Any

from .. import protocol as wire
from .client import AgentLink, Client
from .endpoints import Address

_NO_RECORD = "has told nobody where it is asked: on its host, run probe attach --listen"


def find_peers(client: Client, known: AgentLink, timeout: float) -> list[AgentLink]:
    """Links to the other ranks of an agent's job.  Raises AgentError, SilentError."""
    (call,) = client.ask(wire.PEERS, time.monotonic() + timeout, [known])
    if call.error is not None:
        told = f"{call.error.message.rstrip('.')}."
        raise type(call.error)(told, "Or name them all: tcp://HOST:PORT,tcp://HOST:PORT", call.error.code)
    ranks = call.result()["ranks"]
    return [_link(client, rank, said) for rank, said in enumerate(ranks) if rank != known.rank]


def _link(client: Client, rank: int, said: dict[str, Any] | None) -> AgentLink:
    link = client.connect(Address("" if said is None else str(said["endpoint"]), facts={**(said or {}), "rank": rank}))
    if said is None:
        link.silent, link.gone = _NO_RECORD, True
    return link


def check_ranks(links: list[AgentLink]) -> None:
    """At a record that has been left behind another process may listen by now."""
    for link in links:
        if not link.silent and link.rank != link.address.facts["rank"]:
            link.disclaim(f"has ended: rank {link.rank} is at {link.address.url} now")
