"""A snapshot of some ranks that was taken elsewhere: a host answers for its ranks as the client has seen them.

pin() on the client's side, PinnedSource and HostSnapshot on the host's; used by probe.query.hosts and host_part.
Invariant: rows, log, facts and the last completed step are those of the client's moment, whatever came since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import protocol as wire
from ..client import reply_schema
from ..client.client import Client
from ..errors import SilentError
from ..host.facts import NO_FACTS, Facts
from .scans import AgentRank
from .snapshot import Snapshot
from .source import Rank, SilentRank
from .wire_source import WireSource

_CACHE_BYTES = 256 << 20  # the host has its rows anyway


def pin(rank: AgentRank) -> dict[str, Any]:
    """The rank as it is in its snapshot."""
    facts = {**rank.facts.said(), "pid": rank.pid}
    return {"kind": wire.AT, "facts": facts, "streams": dict(rank.last_seq), "log": rank.log.end}


class PinnedSource(WireSource):
    """Ranks of this host as others have pinned them; pins: of those to give next, by the id of the agent."""

    def __init__(self, client: Client, timeout: float) -> None:
        super().__init__(client, timeout, cache_bytes=_CACHE_BYTES)
        self.pins: Mapping[str, dict[str, Any]] = {}

    def pinned(self, said: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """By the id of the agent.  Raises WireError for what no client sends, SilentError for a rank that is not
        here."""
        here, found = {link.facts.id for link in self._client.links}, {}
        for each in said:
            reply_schema.check(each, 0)
            facts = Facts.parse(each["facts"]) if each["kind"] == wire.AT else NO_FACTS
            if facts.id is None or facts.id not in here:
                raise SilentError("A rank has ended during the request.", code="gone")
            found[facts.id] = {**each, "facts": facts}
        return found

    def ranks(self) -> list[Rank | SilentRank]:
        """Raises SilentError if one cannot be read."""
        links = {link.facts.id: link for link in self._client.links}
        found = [self.rank_at(links[id], at) for id, at in self.pins.items()]
        for error in self.read_logs({rank.link: int(self.pins[str(rank.facts.id)]["log"]) for rank in found}).values():
            raise error
        for rank in found:
            rank.pid = rank.facts.pid  # as the client has it in its tables
        return [*found]


class HostSnapshot(Snapshot):
    """completed: the last step that all ranks of the job have completed, also those of other hosts."""

    def __init__(self, source: PinnedSource, open_steps: bool, completed: int | None) -> None:
        super().__init__([source], open_steps)
        self._completed_by_all = completed

    @property
    def completed(self) -> int | None:
        return self._completed_by_all
