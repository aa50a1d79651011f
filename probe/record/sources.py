"""Where a recorder's rows come from: sources as if their rings began at some moment, and memory that outlives a rank.

Made by probe.record.job.  Invariant: what a window leaves out looks to tables like rows that a ring has overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ..arrays.integers import Ints
from ..host import agent_memory
from ..host.facts import Facts
from ..snapshot.log import Log, log_at
from ..snapshot.memory_source import MemorySource
from ..snapshot.rows import Rows
from ..snapshot.source import Rank, SilentRank, Source, Tables
from ..snapshot.stacks import Thread
from ..streams import EVAL, KIND_MASK, SPANS, WRITTEN

Begin = Callable[[Rank, str], "int | None"]  # of a rank and stream: the moment, None for all rows


class Windowed(Source):
    """The ranks of a source with the rows since about a moment of each.

    held: by process, what is read of a rank that does not answer: /proc shows nothing more of one that is just ending.
    """

    def __init__(self, source: Source, begin: Begin, held: Mapping[int, Source] = MappingProxyType({})) -> None:
        self._source, self._begin, self._held = source, begin, held

    def ranks(self) -> Sequence[Rank | SilentRank]:
        return [self._windowed(one) for one in self._source.ranks()]

    def _windowed(self, one: Rank | SilentRank) -> Rank | SilentRank:
        instead = None if isinstance(one, Rank) else self._held.get(one.pid)
        return one if isinstance(one, Rank) or instead is None else replace(one, instead=Windowed(instead, self._begin))

    def rows(self, stream: str, since_ns: Mapping[Rank, int | None]) -> Tables:
        moments = {rank: self._begin(rank, stream) for rank in since_ns}
        found = self._source.rows(stream, moments)
        return {rank: _cut(rank, stream, table, moments[rank]) for rank, table in found.items()}

    def oldest(self, stream: str, ranks: Sequence[Rank]) -> Tables:
        return self._source.oldest(stream, ranks)

    def ask(self, kind: str, ranks: Sequence[Rank]) -> Mapping[Rank, object]:
        return self._source.ask(kind, ranks)

    def stacks(self, ranks: Sequence[Rank]) -> Mapping[Rank, list[Thread]]:
        return {}


def see(rank: Rank, moments: Mapping[str, int], seen: dict[str, int]) -> None:
    """Have in `seen` the number of the last row before the moment of each stream, of those whose rows are here."""
    for stream, moment in moments.items():
        if rank.has_rows(stream):
            rows = rank.rows(stream)
            place = int(np.searchsorted(rows[WRITTEN[stream]], moment))
            seen[stream] = int(rows["seq"][place - 1]) if place else seen.get(stream, 0)


def hold_only(rank: Rank, streams: Collection[str]) -> None:
    """Of the rows that are here hold those of some streams, and what tells when steps end and evals run."""
    spans = rank.rows(SPANS)
    rank.timeline.closings  # noqa: B018  cached, of all spans
    chosen = (spans["flags"] & KIND_MASK) == EVAL
    chosen[:1] = chosen[-1:] = True  # they say whether earlier ones were overwritten, and how many there were
    rank.forget(*streams)
    rank.put(SPANS, spans.table[chosen])


def _cut(rank: Rank, stream: str, table: Ints, moment: int | None) -> Ints:
    return table if moment is None else Rows(rank.slots(stream), table).since(WRITTEN[stream], moment).table


class HeldMemory(MemorySource):
    """The memory of one agent, kept open: it can be read when the process has ended.  Close it.

    known: its facts, whose numbers of steps the connection has settled; rank: its own; files: descriptors by name.
    """

    def __init__(self, pid: int, known: Facts) -> None:
        super().__init__(pid, known)
        self.id, self.process, self.rank = known.id, pid, known.rank or 0
        self.files: dict[str, int] = {}
        self.hold()

    def hold(self) -> None:
        """Also what the agent has made since; nothing of another agent that has come in its place."""
        paths = agent_memory.descriptors(self.process)
        if self.files and not self._is_same(paths.get("header", "")):
            return
        for name, path in paths.items():
            if name not in self.files:
                with suppress(OSError):  # it ends just now
                    self.files[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _is_same(self, header: str) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.stat(header), os.fstat(self.files["header"]))
        return False

    def know(self, facts: Facts) -> None:
        """These number its steps by now."""
        self.known = facts

    def said(self) -> Facts | None:
        return agent_memory.facts_at(self.paths().get("header", ""))

    def paths(self) -> Mapping[str, str]:
        return {name: f"/proc/self/fd/{number}" for name, number in self.files.items()}

    def log(self) -> Log | None:
        return log_at(self.paths().get("log", ""))

    def close(self) -> None:
        while self.files:
            os.close(self.files.popitem()[1])
