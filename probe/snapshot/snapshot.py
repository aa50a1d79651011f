"""One snapshot of a job as the tables see it: raw rows, log, facts and steps of every rank that answered.

Made by probe.snapshot.wire_source (off the wire) or probe.host.agent_memory (out of a process's memory), read by the
tables. Invariant: everything read through one Snapshot belongs to one moment, and no row travels twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays.arrow import nullable
from ..arrays.dtypes import Ints
from ..streams import PACKING_NS, STEPS, STREAMS, WRITTEN
from .log import Log
from .rows import Rows
from .timeline import Timeline


@dataclass(frozen=True)
class SilentRank:
    """A rank that did not answer."""

    rank: int
    pid: int
    why: str


class RankLeft(Exception):
    """The rank that was being read has left the job; its rows are to be left out."""


class Rank:
    """One rank in one snapshot.  pid: as the reader's machine sees it; now_ns: the moment, on its monotonic clock."""

    def __init__(self, pid: int, facts: dict[str, Any], last_seq: Mapping[str, int], log: Log) -> None:
        self.pid = pid
        self.facts = facts
        self.rank = int(facts.get("rank") or 0)
        self.host = str(facts.get("host", ""))
        self.last_seq = last_seq
        self.log = log
        self.now_ns = int(facts.get("monotonic_ns") or time.monotonic_ns())
        self.snapshot: Snapshot
        self.left = False  # the job: it fell silent while it was read
        self._rows: dict[str, Rows] = {}
        self._oldest: dict[str, Rows] = {}

    def rows(self, stream: str) -> Rows:
        """The rows of a stream; fetched for all ranks of the job at the first call.

        Raises RankLeft if this very rank fell silent meanwhile.
        """
        self.snapshot.fetch_once(stream)
        if self.left:
            raise RankLeft
        return self._rows[stream]

    def oldest_rows(self, stream: str) -> Rows:
        """Some rows at the beginning of a stream, without the rest of it.  Raises RankLeft, as rows()."""
        if stream in self._rows:
            return self.rows(stream)
        self.snapshot.fetch_oldest_once(stream)
        if self.left:
            raise RankLeft
        return self._oldest[stream] if stream in self._oldest else self.rows(stream)

    def recorded(self, stream: str) -> int:
        """How many rows the stream had at the moment of the snapshot, those that were overwritten included."""
        if stream in self.last_seq:
            return int(self.last_seq[stream])
        rows = self.rows(stream)
        return int(rows["seq"][-1]) if len(rows) else 0

    def put(self, stream: str, pieces: Sequence[Ints], oldest: bool = False) -> None:
        """For the fetchers: the complete rows of a stream, or just its oldest ones, in pieces."""
        slots = self.slots(stream)
        empty = np.zeros((0, len(slots)), np.int64)
        whole = pieces[0] if len(pieces) == 1 else np.concatenate([empty, *pieces])
        (self._oldest if oldest else self._rows)[stream] = Rows(slots, whole)

    def has_rows(self, stream: str) -> bool:
        """Whether rows() has nothing to fetch."""
        return stream in self._rows

    def has(self, stream: str) -> bool:
        """Whether the agent records this stream; one of them it makes only where there is a CUDA device."""
        return stream in self.facts.get("streams", {})

    def slots(self, stream: str) -> tuple[str, ...]:
        """The slots as the agent packs them; a stream that it does not have is empty."""
        described = self.facts.get("streams", {}).get(stream)
        return tuple(described["slots"]) if described else STREAMS[stream]

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline(self)

    def wall_us(self, times_ns: Ints) -> Ints:
        """Microseconds since 1970, by the pair of clock readings taken with the snapshot."""
        offset = int(self.facts["wall_ns"]) - int(self.facts["monotonic_ns"])
        result: Ints = (times_ns + offset) // 1000
        return result

    def native_threads(self, threads: Ints) -> Any:
        """Native thread ids, NULL where the log does not know the thread."""
        known, inverse = np.unique(threads, return_inverse=True)
        natives = [self.log.threads.get(ident, {}).get("native_id") for ident in known.tolist()]
        ids = np.array([native or 0 for native in natives], np.int64)[inverse.reshape(-1)]
        return nullable(ids, ids != 0)


class RecentRows(Rank):
    """The same rank, of whose streams only that is read, about, which was recorded from a moment on; but all steps.

    since_ns: None for everything.  others: those of the other ranks, of which the same stream will be wanted.
    """

    def __init__(self, whole: Rank, since_ns: int | None, others: Sequence[RecentRows]) -> None:
        super().__init__(whole.pid, whole.facts, whole.last_seq, whole.log)
        self.whole, self.since_ns, self.others = whole, since_ns, others
        self.now_ns, self.snapshot = whole.now_ns, whole.snapshot

    def rows(self, stream: str) -> Rows:
        if stream == STEPS:
            return self.whole.rows(stream)
        if stream not in self._rows:
            self.snapshot.fetch_recent(stream, [each for each in self.others if not each.whole.left])
        if self.whole.left:
            raise RankLeft
        return self._rows[stream]

    def cut(self, stream: str, table: Ints) -> None:
        """For the fetchers: these are the rows, and maybe some before them."""
        rows = Rows(self.slots(stream), table)
        if self.since_ns is None:
            self.whole.put(stream, [table])
        else:
            rows = rows.since(WRITTEN[stream], self.since_ns - 2 * PACKING_NS)
        self._rows[stream] = rows


class Snapshot:
    """All ranks of one snapshot.  fetch(stream) puts the rows of a stream into every Rank, fetch_oldest(stream) the
    first of them, where that is less work; ask(kind) gives what each rank answers to a request.  silent: ranks that
    are not in it; read: those in it that do not answer, and whose memory was read."""

    def __init__(
        self,
        raws: Sequence[Rank],
        fetch: Callable[[str], None],
        silent: Sequence[SilentRank] = (),
        open_steps: bool = False,
        fetch_oldest: Callable[[str], None] | None = None,
        ask: Callable[[str], dict[Rank, Any]] | None = None,
        read: Sequence[SilentRank] = (),
        fetch_recent: Callable[[str, Sequence[RecentRows]], None] | None = None,
    ) -> None:
        self.ranks = sorted(raws, key=lambda raw: raw.rank)
        self.silent = sorted(silent, key=lambda one: one.rank)
        self.read = sorted(read, key=lambda one: one.rank)
        self.open_steps = open_steps
        self._fetch = fetch
        self._fetch_oldest = fetch_oldest
        self._ask = ask
        self._fetch_recent = fetch_recent
        self._answers: dict[str, dict[Rank, Any]] = {}
        self._fetched: set[str] = set()
        self._oldest_fetched: set[str] = set()
        for raw in self.ranks:
            raw.snapshot = self

    def fetch_once(self, stream: str) -> None:
        """Have the rows of a stream, of all ranks; the first call fetches them."""
        if stream not in self._fetched:
            self._fetch(stream)
            self._fetched.add(stream)

    def fetch_oldest_once(self, stream: str) -> None:
        """Have the oldest rows of a stream, of all ranks, if not all rows are here already."""
        if self._fetch_oldest is None:
            self.fetch_once(stream)
        elif stream not in self._fetched | self._oldest_fetched:
            self._fetch_oldest(stream)
            self._oldest_fetched.add(stream)

    def recent(self, since_ns: Mapping[Rank, int | None]) -> list[RecentRows]:
        """These ranks, each from its moment on."""
        found: list[RecentRows] = []
        found += [RecentRows(raw, moment, found) for raw, moment in since_ns.items()]
        return found

    def fetch_recent(self, stream: str, ranks: Sequence[RecentRows]) -> None:
        """Have what these ranks have recorded of a stream since their moments."""
        here = [each for each in ranks if self._fetch_recent is None or each.whole.has_rows(stream)]
        if here:
            self.fetch_once(stream)
        for each in here:
            if not each.whole.left:
                each.cut(stream, each.whole.rows(stream).table)
        if self._fetch_recent is not None:
            known = set(here)
            self._fetch_recent(stream, [each for each in ranks if each not in known])

    def ask(self, kind: str) -> dict[Rank, Any]:
        """What each rank answers to a request without fields, asked once; {} of ranks that are read, not asked."""
        if kind not in self._answers:
            self._answers[kind] = {} if self._ask is None else self._ask(kind)
        return {raw: answer for raw, answer in self._answers[kind].items() if raw in self.ranks}

    def leave(self, raw: Rank, why: str) -> None:
        """This rank does not answer any more; nothing of it is seen from here on."""
        if not raw.left:
            raw.left = True
            self.ranks.remove(raw)
            self.silent.append(SilentRank(raw.rank, raw.pid, why))

    @cached_property
    def completed(self) -> int | None:
        """The last step that every rank has completed; None as long as one has not completed any."""
        lasts = [raw.timeline.completed for raw in self.ranks if raw.timeline.steps]
        return None if not lasts or None in lasts else min(last for last in lasts if last is not None)
