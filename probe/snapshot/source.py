"""Where the ranks of a snapshot and their rows come from.

WireSource (agents that answer) and MemorySource (a process that need not) implement Source; a Snapshot asks them.  What
else has ranks is one more; a recording has files instead, and is a Connection of its own.  Invariant: everything a
source gives of a rank belongs to the moment at which it gave the rank.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from ..arrays.integers import Ints
from ..errors import ProbeError
from ..host.facts import Facts
from .log import Log
from .rows import Rows
from .stacks import Thread
from .timeline import AllRanks, Timeline

Tables = Mapping["Rank", Ints]  # rank -> complete rows of one stream by number, shape (rows, slots)


class Source(Protocol):
    """Subclass it and write ranks() and rows().  Used by one thread at a time."""

    def ranks(self) -> Sequence[Rank | SilentRank]:
        """The ranks as of now, with their facts and logs."""

    def rows(self, stream: str, since_ns: Mapping[Rank, int | None]) -> Tables:
        """The rows of these ranks since a moment of each, or all of them (None); earlier rows may be among them.

        A rank that cannot be read any more is not in the result; its leave() has been called.
        """

    def oldest(self, stream: str, ranks: Sequence[Rank]) -> Tables:
        """Some rows at the beginning of the stream; worth writing where they cost less than all rows."""
        return self.rows(stream, dict.fromkeys(ranks))

    def facts(self) -> list[Facts]:
        """The facts of the ranks that it can read."""
        return [one.facts for one in self.ranks() if isinstance(one, Rank)]

    def ask(self, kind: str, ranks: Sequence[Rank]) -> Mapping[Rank, Any]:
        """What the agents of these ranks answer to a request without fields; {} where none can be asked."""
        return {}

    def stacks(self, ranks: Sequence[Rank]) -> Mapping[Rank, list[Thread]]:
        """Where the threads of these ranks stand now; without those of which that cannot be found out."""
        return {}


@dataclass(frozen=True)
class SilentRank:
    """A rank that did not answer, and the error that says why.  pid: 0 if it is not known; instead: a source that can
    perhaps read the rank anyway."""

    rank: int
    pid: int
    error: ProbeError
    instead: Source | None = None

    @property
    def why(self) -> str:
        return str(self.error)


class RankLeft(Exception):
    """The rank that was being read has left the job; its rows are to be left out."""


class Rank:
    """One rank in one snapshot.  pid: as the reader's machine sees it; now_ns: the moment, on its monotonic clock.

    last_seq: number of the last row of each stream, as far as the source knows it without reading; log: the same object
    in all snapshots of a rank, where its source keeps it; left: the rank fell silent while it was read.
    """

    source: Source
    snapshot: AllRanks

    def __init__(self, pid: int, facts: Facts, last_seq: Mapping[str, int], log: Log) -> None:
        self.pid = pid
        self.facts = facts
        self.rank = facts.rank or 0
        self.host = facts.host
        self.last_seq = last_seq
        self.log = log
        self.now_ns = facts.monotonic_ns or time.monotonic_ns()
        self.left = False
        self._rows: dict[str, Rows] = {}
        self._oldest: dict[str, Rows] = {}

    def rows(self, stream: str) -> Rows:
        """The rows of a stream; the first call fetches them for all ranks of the snapshot.

        Raises RankLeft if this very rank fell silent meanwhile.
        """
        if stream not in self._rows and not self.left:
            self.snapshot.fetch(stream)
        if self.left:
            raise RankLeft
        return self._rows[stream]

    def oldest_rows(self, stream: str) -> Rows:
        """Some rows at the beginning of a stream, without the rest of it.  Raises RankLeft, as rows()."""
        if stream not in self._rows and stream not in self._oldest and not self.left:
            self.snapshot.fetch(stream, oldest=True)
        if self.left:
            raise RankLeft
        return self._rows[stream] if stream in self._rows else self._oldest[stream]

    def recorded(self, stream: str) -> int:
        """How many rows the stream had at the moment of the snapshot, those that were overwritten included.

        Raises RankLeft, as rows().
        """
        if stream in self.last_seq:
            return int(self.last_seq[stream])
        if not self.has_rows(stream) and not self.left:  # of this rank alone: others may know without reading
            for rank, table in self.source.rows(stream, {self: None}).items():
                rank.put(stream, table)
        if self.left:
            raise RankLeft
        rows = self._rows[stream]
        return int(rows["seq"][-1]) if len(rows) else 0

    def put(self, stream: str, table: Ints, oldest: bool = False) -> None:
        """Keep the rows of a stream, or just its oldest ones."""
        (self._oldest if oldest else self._rows)[stream] = Rows(self.slots(stream), table)

    def forget(self, *kept: str) -> None:
        """Hold no rows any more but those of these streams: what is asked for again is fetched again."""
        self._rows = {stream: rows for stream, rows in self._rows.items() if stream in kept}
        self._oldest.clear()

    def has_rows(self, stream: str, oldest: bool = False) -> bool:
        """Whether rows(), or for `oldest` oldest_rows(), needs to fetch nothing."""
        return stream in self._rows or (oldest and stream in self._oldest)

    def slots(self, stream: str) -> tuple[str, ...]:
        """The slots as the agent packs them; a stream that it does not have is empty."""
        return tuple(self.facts.slots(stream))

    def leave(self, error: ProbeError) -> None:
        """The rank cannot be read any more: the snapshot goes on without it."""
        self.snapshot.leave(self, error)

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline(self, self.rows, self.facts.step_base)

    def wall_us(self, times_ns: Ints) -> Ints:
        """Microseconds since 1970, by the pair of clock readings taken with the snapshot."""
        return (times_ns + self.facts.wall_offset_ns) // 1000
