"""Rows of a stream of many agents at once: off the wire, or out of the rings of agents on this machine.

Called by probe.snapshot.wire_source.  Invariant: a rank that falls silent on the way has no rows, never half of them;
and rows that a connection has read before do not travel again, as long as they fit into its cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import protocol as wire
from ..arrays.arrow import template
from ..arrays.integers import Ints
from ..client.client import AgentLink, Call, Client, Header, OnReply
from ..errors import QueryError, SilentError
from ..streams import COLLECTIVES, WRITTEN
from .log import Log
from .memory_source import RingReader
from .rows import RowCache, complete
from .source import Rank, Tables

CACHE_BYTES = 1 << 30  # of rows that are kept for the next query
_CHANGING = {COLLECTIVES}  # the end of an operation is written later, in place


class AgentRank(Rank):
    """A rank whose agent answers at a link, as of a snapshot."""

    def __init__(self, link: AgentLink, last_seq: Mapping[str, int], log: Log) -> None:
        super().__init__(link.pid, link.facts, last_seq, log)
        self.link = link


def stored_bytes(rank: Rank, stream: str) -> int:
    """Of all rows of a stream that the ring has."""
    first, last = _range(rank, stream)
    return max(0, last - first + 1) * len(rank.slots(stream)) * 8


@dataclass(frozen=True)
class HostFetch:
    """What the server of one host has answered instead of rows.  ms: until that was here."""

    host: str
    ranks: tuple[int, ...]
    bytes: int
    ms: float


@dataclass
class Scan:
    """One scan of one rank; afterwards what it was: `--explain-fetch` shows it."""

    rank: AgentRank
    stream: str
    asked: dict[str, Any]
    estimate: int  # bytes
    began: float = 0.0
    first: int = 0  # number of the first row that came
    rows: int = 0
    bytes: int = 0
    ms: float = 0.0
    is_read: bool = False  # out of its memory
    _table: Ints | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to ask for."""
        return bool(self.asked["last"] < self.asked["first"])

    def read(self, ring: RingReader) -> None:
        """Raises OSError."""
        asked, slots = self.asked, self.rank.slots(self.stream)
        self.first, self._table = ring.rows(self.stream, slots, asked["first"], asked["last"], asked.get("since"))
        self.rows, self.bytes, self.is_read = len(self._table), self._table.nbytes, True
        self.ms = (time.monotonic() - self.began) * 1e3

    def take(self, first: int, frame: Any) -> None:
        """Rows from this number on, which follow those that came before."""
        came: Ints = np.frombuffer(frame, "<i8").reshape(-1, len(self.rank.slots(self.stream)))
        if self._table is None:
            self.first = first
            self._table = np.empty((self.asked["last"] - first + 1, came.shape[1]), np.int64)
        self._table[self.rows : self.rows + len(came)] = came
        self.rows += len(came)
        self.bytes += came.nbytes
        self.ms = (time.monotonic() - self.began) * 1e3

    @property
    def table(self) -> Ints:
        """The complete rows of what came."""
        if self._table is None:
            return np.zeros((0, len(self.rank.slots(self.stream))), np.int64)
        return complete(self._table[: self.rows], self.first)


class FetchAccount:
    """max_bytes: of one query, None for no limit; scans, hosts: what has been fetched for it; seconds: that took;
    declined: why hosts did not answer for their own ranks, a sentence each."""

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, max_bytes: float | None) -> None:
        """For the next query."""
        self.max_bytes = max_bytes
        self.scans: list[Scan] = []
        self.hosts: list[HostFetch] = []
        self.declined: list[str] = []
        self.seconds = 0.0

    def admit(self, scans: Sequence[Scan]) -> None:
        """Raises QueryError if the query would fetch more than it may with these."""
        estimate = sum(scan.estimate for scan in scans) + sum(scan.bytes for scan in self.scans)
        if self.max_bytes is not None and estimate > self.max_bytes:
            ranks, gigabytes = len({scan.rank.rank for scan in scans}), -(-estimate // 1_000_000_000)
            much = f"about {_megabytes(estimate)} from {ranks} rank{'s' * (ranks > 1)}"
            why = f"The query would fetch {much}, more than {_megabytes(self.max_bytes)}."
            hint = f"Ask for less (WHERE step > …, WHERE rank = …), or allow it: --max-fetch {gigabytes:.0f}GB"
            raise QueryError(why, hint, "max-fetch")


class Scans:
    """account: of what is fetched; cache_bytes: of rows that are kept for the next query."""

    def __init__(self, client: Client, timeout: float, account: FetchAccount, cache_bytes: int = CACHE_BYTES) -> None:
        self._client, self._timeout, self._account, self._cache_bytes = client, timeout, account, cache_bytes
        self._caches: dict[tuple[AgentLink, str], RowCache] = {}
        self._rings: dict[AgentLink, RingReader | None] = {}
        # the first agent of a process; only simulations have several in one
        self._of_process: dict[int, AgentLink] = {}

    def forget(self, link: AgentLink) -> None:
        """What has been read of this agent."""
        self._rings.pop(link, None)
        self._caches = {key: cache for key, cache in self._caches.items() if key[0] is not link}

    def rows(self, stream: str, since_ns: Mapping[AgentRank, int | None]) -> Tables:
        """All rows of a stream that these ranks have, or those since a moment of each."""
        caches = {rank: self._cache(rank, stream, moment is None) for rank, moment in since_ns.items()}
        scans = [_scan_since(rank, stream, moment, caches[rank]) for rank, moment in since_ns.items()]
        found: dict[Rank, Ints] = {}
        for scan in self._run(scans):
            cache = caches[scan.rank]
            if "since" in scan.asked:
                cache.begin(scan.first, scan.first == scan.asked["first"])
            found[scan.rank] = cache.take(scan.table, scan.first, scan.asked["last"])
        self._shrink(caches.values())
        return found

    def some(self, stream: str, ranks: Iterable[AgentRank], count: int, newest: bool) -> Tables:
        """At most so many of the newest rows, or of the oldest; they are not kept."""
        scans = []
        for rank in ranks:
            first, last = _range(rank, stream)
            within = (max(first, last - count + 1), last) if newest else (first, min(last, first + count - 1))
            scans.append(_scan(rank, stream, *within))
        return {scan.rank: scan.table for scan in self._run(scans)}

    def receive(self, calls: Sequence[Call], take: OnReply) -> None:
        """Take streams to their ends, or errors; the time-out runs anew with everything that comes."""
        heard = began = time.monotonic()

        def on_reply(call: Call, header: Header, payload: Sequence[Any]) -> None:
            nonlocal heard
            heard = time.monotonic()
            take(call, header, payload)

        try:
            late = self._client.wait(calls, None, on_reply, lambda: time.monotonic() - heard > self._timeout)
            for call in late:
                call.error = SilentError(f"Rank {call.link.rank} (pid {call.link.pid}) stopped answering.")
        finally:  # after Ctrl-C too
            self._client.cancel(call for call in calls if call.answer is None)
            self._client.forget(calls)
            self._account.seconds += time.monotonic() - began

    def _cache(self, rank: AgentRank, stream: str, whole: bool) -> RowCache:
        """What is kept of a stream: nothing where it does not reach to what the ring has now, or not from there."""
        cache = self._caches.setdefault((rank.link, stream), RowCache(len(rank.slots(stream))))
        oldest, _ = _range(rank, stream)
        if stream in _CHANGING or cache.next < oldest or (whole and not cache.whole):
            cache.begin(oldest, True)
        cache.drop_before(oldest)
        return cache

    def _shrink(self, newest: Iterable[RowCache]) -> None:
        """Keep no more than there is room for: what has come last goes."""
        size = sum(each.bytes for each in self._caches.values())
        for cache in newest if size > self._cache_bytes else ():
            size -= cache.bytes
            cache.begin(1, False)
            if size <= self._cache_bytes:
                return

    def _run(self, scans: Sequence[Scan]) -> list[Scan]:
        """Take all of them to their ends; without those of ranks that have left."""
        self._account.admit(scans)
        began = time.monotonic()
        self._account.scans += [scan for scan in scans if not scan.is_empty and self._read(scan)]
        self._account.seconds += time.monotonic() - began
        calls = {self._send(scan): scan for scan in scans if not scan.is_empty and not scan.is_read}
        self.receive(list(calls), lambda call, header, payload: calls[call].take(header["first"], payload[1]))
        self._account.scans += calls.values()
        for call, scan in calls.items():
            if call.error is not None:
                scan.rank.leave(call.error)
        return [scan for scan in scans if not scan.rank.left]

    def _read(self, scan: Scan) -> bool:
        """Without the agent, where that can be done.  What is changed in place only the agent can show whole."""
        link = scan.rank.link
        if scan.stream in _CHANGING or not link.readable:
            return False
        if link not in self._rings:
            alone = self._of_process.setdefault(link.pid, link) is link
            self._rings[link] = RingReader.of(link.pid, scan.rank.facts.id) if alone else None
        ring, scan.began = self._rings[link], time.monotonic()
        try:
            if ring is not None:
                scan.read(ring)
        except (OSError, KeyError):  # it goes just now, which its answer will tell
            self._rings[link] = None
        return scan.is_read

    def _send(self, scan: Scan) -> Call:
        header, patch = template(len(scan.rank.slots(scan.stream)))
        scan.began = time.monotonic()
        return self._client.send(scan.rank.link, wire.SCAN, header, patch=patch, credit=wire.CREDIT, **scan.asked)


def _range(rank: Rank, stream: str) -> tuple[int, int]:
    """First and last number of the rows that the ring has."""
    last = int(rank.last_seq.get(stream, 0))
    return max(1, last - rank.facts.ring_rows(stream) + 1), last


def _scan(
    rank: AgentRank, stream: str, first: int, last: int, since: tuple[str, int] | None = None, share: float = 1.0
) -> Scan:
    """share: of these rows, how many will come, about."""
    asked = {"stream": stream, "first": first, "last": last, **({} if since is None else {"since": list(since)})}
    return Scan(rank, stream, asked, int(max(0, last - first + 1) * len(rank.slots(stream)) * 8 * share))


def _scan_since(rank: AgentRank, stream: str, moment: int | None, cache: RowCache) -> Scan:
    """What the cache lacks of the rows since a moment; all that it lacks where it begins before that."""
    first, last = _range(rank, stream)
    if moment is None:
        return _scan(rank, stream, max(first, cache.next), last)
    slot = WRITTEN[stream]
    if len(cache.table) and (cache.whole or int(cache.table[0, rank.slots(stream).index(slot)]) < moment):
        return _scan(rank, stream, max(first, cache.next), last)
    # as if rows had come evenly since the attach; the ring has the last of them
    share = (rank.now_ns - moment) / max(1, rank.now_ns - rank.facts.attached_ns) * last / max(1, last - first + 1)
    return _scan(rank, stream, first, last, (slot, moment), min(1.0, share))


def _megabytes(size: float) -> str:
    if size < 1e5:
        return f"{size / 1e3:.0f} kB" if size >= 1e4 else f"{size / 1e3:.1f} kB"
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB"
