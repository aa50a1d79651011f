"""Rows of streams, of many agents at once: off the wire, or out of their memory.

Called by probe.snapshot.wire_source.  Invariant: a rank that falls silent on the way leaves the Job whole, never half
of its rows; and what a connection has read before does not travel again, as long as it has room for it.  An agent of
this machine sends nothing: its memory is read (probe.snapshot.ring_reader).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import protocol as wire
from ..arrays.arrow import template
from ..arrays.dtypes import Ints
from ..client.client import AgentLink, Call, Client, Header, OnReply, nobody
from ..errors import QueryError, SilentError
from ..streams import CHUNK_ROWS, COLLECTIVES, PACKING_NS, WRITTEN
from .ring_reader import RingReader
from .row_cache import RowCache
from .rows import complete
from .snapshot import Rank, RecentRows, Snapshot

_ROOM = 1 << 30  # bytes of rows that are kept for the next query
_CHANGING = {COLLECTIVES}  # the end of an operation is written later, in place


@dataclass
class Scan:
    """One scan of one rank, and with the closing message what it was: `--explain-fetch` shows it."""

    raw: Rank
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

    def read(self, shared: RingReader) -> None:
        """Raises OSError."""
        since = self.asked.get("since")
        where = (self.stream, self.raw.slots(self.stream), self.asked["first"], self.asked["last"])
        self.first, self._table = shared.rows(*where, None if since is None else (since[0], since[1]))
        self.rows, self.bytes, self.is_read = len(self._table), self._table.nbytes, True
        self.ms = (time.monotonic() - self.began) * 1e3

    def take(self, first: int, frame: Any) -> None:
        """Rows from this number on, which follow those that came before."""
        came: Ints = np.frombuffer(frame, "<i8").reshape(-1, len(self.raw.slots(self.stream)))
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
            return np.zeros((0, len(self.raw.slots(self.stream))), np.int64)
        return complete(self._table[: self.rows], self.first)


class Scans:
    """max_bytes: of one query; account: what has travelled for it; seconds: that took."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client, self._timeout = client, timeout
        self._kept: dict[tuple[AgentLink, str], RowCache] = {}
        self._shared: dict[AgentLink, RingReader | None] = {}
        self._of_process: dict[
            int, AgentLink
        ] = {}  # the first; several agents in a process there are in simulations only
        self.begin(None)

    def begin(self, max_bytes: float | None) -> None:
        """For the next query."""
        self.max_bytes = max_bytes
        self.account: list[Scan] = []
        self.seconds = 0.0

    def forget(self, link: AgentLink) -> None:
        """What has been read of this agent."""
        self._shared.pop(link, None)
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] is not link}

    def whole(self, job: Snapshot, raws: dict[AgentLink, Rank], stream: str, newest: int | None = None) -> None:
        """All rows of a stream, or so many of the newest."""
        scans, kept = {}, {}
        for link, raw in _answering(job, raws):
            if newest is None:
                kept[link] = self._keeping(link, raw, stream, True)
            scans[link] = _scan(raw, stream, *_range(raw, stream, newest, kept.get(link)))
        for link, scan in self._run(job, scans).items():
            scan.raw.put(stream, [self._taken(kept[link], scan) if link in kept else scan.table])
        self._fit(kept.values())

    def oldest(self, job: Snapshot, raws: dict[AgentLink, Rank], stream: str, rows: int) -> None:
        """At most so many of the oldest rows."""
        scans = {}
        for link, raw in _answering(job, raws):
            first, last = _range(raw, stream)
            scans[link] = _scan(raw, stream, first, min(last, first + rows - 1))
        for scan in self._run(job, scans).values():
            scan.raw.put(stream, [scan.table], oldest=True)

    def recent(self, job: Snapshot, raws: dict[AgentLink, Rank], stream: str, ranks: Sequence[RecentRows]) -> None:
        """The rows since the moment of each rank."""
        wanted = {each.whole: each for each in ranks}
        chosen = {link: raw for link, raw in raws.items() if raw in wanted}
        scans = {link: self._since(link, wanted[raw], stream) for link, raw in _answering(job, chosen)}
        for link, scan in self._run(job, scans).items():
            wanted[scan.raw].cut(stream, self._taken(self._kept[link, stream], scan))
        self._fit(self._kept[link, stream] for link in scans)

    def _since(self, link: AgentLink, recent: RecentRows, stream: str) -> Scan:
        raw, kept = recent.whole, self._keeping(link, recent.whole, stream, recent.since_ns is None)
        if recent.since_ns is None:
            return _scan(raw, stream, *_range(raw, stream, None, kept))
        slot, since = WRITTEN[stream], recent.since_ns - 2 * PACKING_NS
        if len(kept.table) and (kept.whole or int(kept.table[0, raw.slots(stream).index(slot)]) < since):
            return _scan(raw, stream, *_range(raw, stream, None, kept))
        first, last = _range(raw, stream)
        share = (raw.now_ns - since) / max(1, raw.now_ns - int(raw.facts.get("attached_ns") or 0))
        return _scan(raw, stream, first, last, (slot, since), min(1.0, share))

    def _keeping(self, link: AgentLink, raw: Rank, stream: str, whole: bool = False) -> RowCache:
        """What is kept of a stream: nothing where it does not reach to what the ring has now, or not from there."""
        kept = self._kept.setdefault((link, stream), RowCache(len(raw.slots(stream))))
        oldest, _ = _range(raw, stream)
        if stream in _CHANGING or kept.next < oldest or (whole and not kept.whole):
            kept.begin(oldest, True)
        kept.drop_before(oldest)
        return kept

    def _taken(self, kept: RowCache, scan: Scan) -> Ints:
        if "since" in scan.asked:
            kept.begin(scan.first, scan.first == scan.asked["first"])
        return kept.take(scan.table, scan.first, scan.asked["last"])

    def _fit(self, new: Iterable[RowCache]) -> None:
        """Keep no more than there is room for: what has come last goes."""
        size = sum(each.bytes for each in self._kept.values())
        for kept in new if size > _ROOM else ():
            size -= kept.bytes
            kept.begin(1, False)
            if size <= _ROOM:
                return

    def _run(self, job: Snapshot, scans: dict[AgentLink, Scan]) -> dict[AgentLink, Scan]:
        """Ask for all of them, and take them to their ends; without the ranks that have left."""
        self._weigh(list(scans.values()))
        wanted = {link: scan for link, scan in scans.items() if _wanted(scan)}
        began = time.monotonic()
        self.account += [scan for link, scan in wanted.items() if self._read(link, scan)]
        self.seconds += time.monotonic() - began
        calls = {self._send(link, scan): scan for link, scan in wanted.items() if not scan.is_read}

        def take(call: Call, header: Header, payload: Sequence[Any]) -> None:
            calls[call].take(int(header["first"]), payload[1].buffer)

        self.stream(job, {call: scan.raw for call, scan in calls.items()}, take)
        self.account += calls.values()
        return {link: scan for link, scan in scans.items() if not scan.raw.left}

    def _read(self, link: AgentLink, scan: Scan) -> bool:
        """Without the agent, where that can be done.  What is changed in place only the agent can show whole."""
        if scan.stream in _CHANGING or not link.readable:
            return False
        if link not in self._shared:
            alone = self._of_process.setdefault(link.pid, link) is link
            self._shared[link] = RingReader.of(link.pid, scan.raw.facts.get("id")) if alone else None
        shared, scan.began = self._shared[link], time.monotonic()
        try:
            if shared is not None:
                scan.read(shared)
        except (OSError, KeyError):  # it goes just now, which its answer will tell
            self._shared[link] = None
        return scan.is_read

    def _send(self, link: AgentLink, scan: Scan) -> Call:
        header, patch = template(len(scan.raw.slots(scan.stream)))
        scan.began = time.monotonic()
        return self._client.send(link, wire.SCAN, header, patch=patch, credit=wire.CREDIT, **scan.asked)

    def _weigh(self, scans: Sequence[Scan]) -> None:
        estimate = sum(scan.estimate for scan in scans) + sum(scan.bytes for scan in self.account)
        if self.max_bytes is not None and estimate > self.max_bytes:
            ranks = len({scan.raw.rank for scan in scans})
            raise QueryError(
                f"The query would fetch about {_told(estimate)} from {ranks} rank{'s' * (ranks > 1)}, more than "
                f"{_told(self.max_bytes)}.",
                "Ask for less (WHERE step > …, WHERE rank = …), or allow it: --max-fetch "
                f"{-(-estimate // 1_000_000_000):.0f}GB",
                "max-fetch",
            )

    def stream(self, job: Snapshot, calls: dict[Call, Rank], take: OnReply) -> None:
        """Take streams to their ends; the time-out runs anew with everything that comes."""
        heard = began = time.monotonic()

        def on_reply(call: Call, header: Header, payload: Sequence[Any]) -> None:
            nonlocal heard
            heard = time.monotonic()
            take(call, header, payload)

        try:
            late = self._client.wait(list(calls), None, on_reply, lambda: time.monotonic() - heard > self._timeout)
            for call in late:
                call.error = SilentError(f"Rank {call.link.rank} (pid {call.link.pid}) stopped answering.")
        finally:  # after Ctrl-C too
            self._client.cancel(call for call in calls if call.answer is None)
            self._client.forget(calls)
            self.seconds += time.monotonic() - began
        for call, raw in calls.items():
            if call.error is not None:
                job.leave(raw, str(call.error))
        if calls and not job.ranks:
            raise nobody(list(calls))


def _answering(job: Snapshot, raws: dict[AgentLink, Rank]) -> Iterator[tuple[AgentLink, Rank]]:
    """The ranks that answer."""
    for link, raw in raws.items():
        if not raw.left:
            yield link, raw


def _range(raw: Rank, stream: str, newest: int | None = None, kept: RowCache | None = None) -> tuple[int, int]:
    """First and last number of what there is, of what is asked for, and of that what is not here."""
    last = int(raw.last_seq.get(stream, 0))
    room = int(raw.facts["streams"].get(stream, {}).get("chunks", 1)) * CHUNK_ROWS
    first = max(1, last - (room if newest is None else min(room, newest)) + 1)
    return first if kept is None else max(first, kept.next), last


def _scan(raw: Rank, stream: str, first: int, last: int, since: Sequence[Any] = (), share: float = 1.0) -> Scan:
    asked: dict[str, Any] = {"stream": stream, "first": first, "last": last}
    if since:
        asked["since"] = list(since)
    return Scan(raw, stream, asked, int(max(0, last - first + 1) * len(raw.slots(stream)) * 8 * share))


def _told(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB"


def _wanted(scan: Scan) -> bool:
    return bool(scan.asked["last"] >= scan.asked["first"])
