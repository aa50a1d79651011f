"""The ranks whose agents a client is connected to: facts and log off the wire, and rows when a table asks for them.

Made by probe.connection.  Invariant: all rows are pinned to the numbers that the agents named with their facts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from .. import protocol as wire
from ..client.client import AgentLink, Call, Client, Header
from ..errors import ProbeError, SilentError
from .live_stacks import STARTS_S, live_stacks
from .log import START, Log
from .memory_source import MemorySource
from .scans import CACHE_BYTES, AgentRank, FetchAccount, Scans
from .source import Rank, SilentRank, Source, Tables
from .stacks import Thread


class WireSource(Source):
    """newest: read so many of the newest rows of each stream at most; cache_bytes: of rows that are kept for the next
    snapshot.  account: of what was fetched.

    Keeps logs: only their new parts travel.
    """

    def __init__(
        self, client: Client, timeout: float, newest: int | None = None, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._client, self._timeout, self._newest = client, timeout, newest
        self.account = FetchAccount()
        self._logs: dict[AgentLink, tuple[str | None, Log]] = {}  # with the agent's id
        self._scans = Scans(client, timeout, self.account, cache_bytes)

    def ranks(self) -> list[Rank | SilentRank]:
        calls = self._client.ask(wire.SNAPSHOT, time.monotonic() + self._timeout)
        ranks = [self.rank_at(call.link, call.answer) for call in calls if call.answer is not None]
        errors = {call.link: call.error for call in calls if call.error is not None}
        ends = {call.link: int(call.answer["log"]) for call in calls if call.answer is not None}
        errors |= self.read_logs(ends)
        found: list[Rank | SilentRank] = [rank for rank in ranks if rank.link not in errors]
        for link, error in errors.items():
            memory = MemorySource(link.pid, link.facts) if link.readable else None
            found.append(SilentRank(link.rank, link.pid, error, memory))
        return found

    def rows(self, stream: str, since_ns: Mapping[Rank, int | None]) -> Tables:
        ranks = _same_agents(since_ns)
        if self._newest is not None:
            return self._scans.some(stream, ranks, self._newest, newest=True)
        return self._scans.rows(stream, {rank: since_ns[rank] for rank in ranks})

    def oldest(self, stream: str, ranks: Sequence[Rank]) -> Tables:
        """Enough rows that some are left when the ring goes on meanwhile."""
        return self._scans.some(stream, _same_agents(ranks), wire.ROWS_A_MESSAGE, newest=False)

    def ask(self, kind: str, ranks: Sequence[Rank]) -> dict[Rank, Header]:
        by_link = {rank.link: rank for rank in _same_agents(ranks)}
        calls = self._client.ask(kind, time.monotonic() + self._timeout, list(by_link))
        self._leave(by_link, {call.link: call.error for call in calls if call.error is not None})
        return {by_link[call.link]: call.answer for call in calls if call.answer is not None}

    def stacks(self, ranks: Sequence[Rank]) -> dict[Rank, list[Thread]]:
        by_link = {rank.link: rank for rank in _same_agents(ranks)}
        deadline = time.monotonic() + self._timeout
        found, errors = live_stacks(self._client, list(by_link), deadline, starts_s=STARTS_S)
        self._leave(by_link, errors)
        return {by_link[link]: threads for link, threads in found.items()}

    def _leave(self, ranks: Mapping[AgentLink, Rank], errors: Mapping[AgentLink, ProbeError]) -> None:
        """Those that have not answered."""
        for link, error in errors.items():
            if not isinstance(error, SilentError):  # an agent of another version does not know the request
                raise error
            ranks[link].leave(error)

    def rank_at(self, link: AgentLink, header: Header) -> AgentRank:
        """As of a reply to `snapshot`, perhaps an older one; its log has to be read."""
        link.facts = header["facts"]
        facts = link.facts  # perhaps with other numbers of steps
        id, log = self._logs.setdefault(link, (facts.id, Log()))
        if id != facts.id:  # the job was detached, and attached again at the same port
            self._scans.forget(link)
        if id != facts.id or log.end > max(START, header["log"]):
            log = Log()
            self._logs[link] = facts.id, log
        return AgentRank(link, header["streams"], log)

    def read_logs(self, ends: Mapping[AgentLink, int]) -> dict[AgentLink, ProbeError]:
        """Of those to whom it did not come, why."""
        calls: dict[Call, list[bytes]] = {}
        for link, end in ends.items():
            begin = self._logs[link][1].end
            if end > begin:
                calls[self._client.send(link, wire.LOG, first=begin, last=end, credit=wire.CREDIT)] = []
        self._scans.receive(list(calls), lambda call, header, payload: calls[call].append(payload[0]))
        for call, pieces in calls.items():
            if call.error is None:
                self._logs[call.link][1].feed(b"".join(pieces))
        return {call.link: call.error for call in calls if call.error is not None}


def _same_agents(ranks: Iterable[Rank]) -> list[AgentRank]:
    """Without ranks of an earlier snapshot at whose address another agent answers by now: they leave."""
    found = []
    for rank in ranks:
        assert isinstance(rank, AgentRank)
        if rank.link.facts.id == rank.facts.id:
            found.append(rank)
        else:
            rank.leave(SilentError(f"Rank {rank.rank} (pid {rank.pid}) was detached and attached again."))
    return found
