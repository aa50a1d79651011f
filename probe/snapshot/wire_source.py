"""A snapshot of a job off the wire: facts, log and, when a table asks for them, the rows of its streams.

Called by probe.connection.  Invariant: all rows of one Job are pinned to the numbers that the snapshot named.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .. import protocol as wire
from ..client.client import AgentLink, Call, Client, Header, nobody
from ..errors import SilentError
from . import memory_source
from .log import Log
from .scans import Scans
from .snapshot import Rank, RecentRows, SilentRank, Snapshot

_OLDEST = wire.ROWS_A_MESSAGE  # enough that some are left when the ring goes on meanwhile


class WireSource:
    """Snapshots of the agents of a client; keeps their logs, of which only the new part travels."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._logs: dict[AgentLink, Log] = {}
        self._agents: dict[AgentLink, Any] = {}  # by their ids
        self.scans = Scans(client, timeout)

    def snapshot(self, open_steps: bool = False, newest: int | None = None) -> Snapshot:
        """The job at this moment; newest: of each stream so many rows.  Raises SilentError if there is no rank.

        Of ranks that do not answer the memory is read, where that can be done.
        """
        calls = self._client.ask(wire.SNAPSHOT, time.monotonic() + self._timeout)
        answered = {call.link: call.result() for call in calls if call.error is None}
        mute = [SilentRank(call.link.rank, call.link.pid, str(call.error)) for call in calls if call.error is not None]
        stored = self._stored([call.link for call in calls if call.error is not None])
        if not answered and not stored:
            raise nobody(calls)
        raws = {link: self._raw(link, header) for link, header in answered.items()}
        known = {raw.rank for raw in stored}

        def fetch(stream: str) -> None:
            self.scans.whole(job, raws, stream, newest)
            memory_source.put_rows(stored, stream)

        def fetch_oldest(stream: str) -> None:
            self.scans.oldest(job, raws, stream, _OLDEST)
            memory_source.put_rows(stored, stream, oldest=True)

        def fetch_recent(stream: str, ranks: Sequence[RecentRows]) -> None:
            self.scans.recent(job, raws, stream, ranks)
            memory_source.put_recent([each for each in ranks if each.whole in stored], stream)

        job = Snapshot(
            [*raws.values(), *stored],
            fetch,
            [one for one in mute if one.rank not in known],
            open_steps,
            fetch_oldest,
            lambda kind: self._ask(job, raws, kind),
            [one for one in mute if one.rank in known],
            fetch_recent,
        )
        self._read_logs(job, raws, {link: int(header["log"]) for link, header in answered.items()})
        return job

    def _stored(self, links: Sequence[AgentLink]) -> list[Rank]:
        """Ranks that do not answer, by their memory; how their steps are numbered this connection has found out."""
        here = {link.pid: link for link in links if link.readable}
        raws = memory_source.ranks(here)
        numbered = {
            pid: {name: link.facts.get(name) for name in ("step_base", "step_source")} for pid, link in here.items()
        }
        for raw in raws:
            raw.facts.update(numbered[raw.pid])
        return raws

    def _raw(self, link: AgentLink, header: Header) -> Rank:
        link.facts = header["facts"]
        if self._agents.setdefault(link, link.facts.get("id")) != link.facts.get("id"):
            self._forget(link)
        return Rank(link.pid, link.facts, header["streams"], self._logs.setdefault(link, Log()))

    def _forget(self, link: AgentLink) -> None:
        """Another agent listens at that port now: the job was detached and attached again."""
        self._agents[link] = link.facts.get("id")
        self._logs.pop(link, None)
        self.scans.forget(link)

    def _ask(self, job: Snapshot, raws: dict[AgentLink, Rank], kind: str) -> dict[Rank, Header]:
        calls = self._client.ask(
            kind, time.monotonic() + self._timeout, [link for link in raws if raws[link] in job.ranks]
        )
        for call in calls:
            if isinstance(call.error, SilentError):
                job.leave(raws[call.link], str(call.error))
            elif call.error is not None:  # an agent of another version does not know the request
                raise call.error
        return {raws[call.link]: call.answer for call in calls if call.answer is not None}

    def _read_logs(self, job: Snapshot, raws: dict[AgentLink, Rank], ends: dict[AgentLink, int]) -> None:
        new = {link: raw for link, raw in raws.items() if ends[link] > raw.log.end}
        calls = {self._log_call(link, raw.log.end, ends[link]): raw for link, raw in new.items()}
        pieces: dict[Call, list[bytes]] = {call: [] for call in calls}
        self.scans.stream(job, calls, lambda call, header, payload: pieces[call].append(payload[0].bytes))
        for call, raw in calls.items():
            if call.error is None:
                raw.log.feed(b"".join(pieces[call]))

    def _log_call(self, link: AgentLink, first: int, last: int) -> Call:
        return self._client.send(link, wire.LOG, first=first, last=last, credit=wire.CREDIT)
