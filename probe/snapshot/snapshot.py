"""One snapshot of a job as the tables see it: rows, log, facts and steps of every rank that answered.

Made by Connection.snapshot, read by the tables.  Invariant: everything read through one Snapshot belongs to one moment,
and no row is fetched twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

from ..arrays.dtypes import Ints
from ..client.client import nobody
from ..errors import ProbeError
from ..streams import PACKING_NS, STEPS, WRITTEN
from .rows import Rows
from .source import Rank, RankLeft, SilentRank, Source, Tables

__all__ = ["Rank", "RankLeft", "RecentRows", "SilentRank", "Snapshot"]


class RecentRows(Rank):
    """The same rank, restricted in every stream to about what was recorded from a moment on; but all its steps.

    since_ns: None for everything.  others: those of the other ranks, of which the same stream will be wanted.
    """

    def __init__(self, everything: Snapshot, whole: Rank, since_ns: int | None, others: Sequence[RecentRows]) -> None:
        super().__init__(whole.pid, whole.facts, whole.last_seq, whole.log)
        self.whole, self.since_ns, self.others = whole, since_ns, others
        self.now_ns, self.snapshot, self._everything = whole.now_ns, everything, everything

    def rows(self, stream: str) -> Rows:
        if stream == STEPS:
            return self.whole.rows(stream)
        if stream not in self._rows:
            self._everything.fetch_recent(stream, [each for each in self.others if not each.whole.left])
        if self.whole.left:
            raise RankLeft
        return self._rows[stream]

    def put(self, stream: str, table: Ints, oldest: bool = False) -> None:
        """Keep these rows, without those that are older than wanted; all of them for the whole rank, if it has all."""
        super().put(stream, table, oldest)
        if self.since_ns is None:
            self.whole.put(stream, table, oldest)
        else:
            self._rows[stream] = self._rows[stream].since(WRITTEN[stream], self.since_ns - 2 * PACKING_NS)


class Snapshot:
    """All ranks of some sources at one moment, by rank; Connection.snapshot makes one.

    Example: `{rank.rank: len(rank.rows("spans")) for rank in job.snapshot().ranks}`

    Raises SilentError if there is none, or the error of the only one.

    open_steps: steps that still run are seen too.  silent: ranks that are not in it; read: those in it that do not
    answer, and are read from somewhere else.
    """

    def __init__(self, sources: Iterable[Source], open_steps: bool = False) -> None:
        self.open_steps = open_steps
        self.ranks: list[Rank] = []
        self.silent: list[SilentRank] = []
        self.read: list[SilentRank] = []
        self._answers: dict[str, Mapping[Rank, Any]] = {}
        for source in sources:
            self._take(source)
        if not self.ranks:
            raise nobody([one.error for one in self.silent])
        self.ranks.sort(key=attrgetter("rank"))
        self.silent.sort(key=attrgetter("rank"))
        self.read.sort(key=attrgetter("rank"))

    def _take(self, source: Source) -> int:
        """The ranks of a source; how many it has."""
        for one in (found := source.ranks()):
            if isinstance(one, Rank):
                one.source, one.snapshot = source, self
                self.ranks.append(one)
            else:
                is_read = one.instead is not None and self._take(one.instead)
                (self.read if is_read else self.silent).append(one)
        return len(found)

    def fetch(self, stream: str) -> None:
        """Have all rows of a stream, of all ranks."""
        missing = [rank for rank in self.ranks if not rank.has_rows(stream)]
        for rank, table in self._tables(missing, lambda source, some: source.rows(stream, dict.fromkeys(some))).items():
            rank.put(stream, table)

    def fetch_oldest(self, stream: str) -> None:
        """Have the oldest rows of a stream, of all ranks."""
        missing = [rank for rank in self.ranks if not rank.has_rows(stream, oldest=True)]
        for rank, table in self._tables(missing, lambda source, some: source.oldest(stream, some)).items():
            rank.put(stream, table, oldest=True)

    def recent(self, since_ns: Mapping[Rank, int | None]) -> list[RecentRows]:
        """These ranks, each from its moment on."""
        found: list[RecentRows] = []
        found += [RecentRows(self, rank, moment, found) for rank, moment in since_ns.items()]
        return found

    def fetch_recent(self, stream: str, ranks: Sequence[RecentRows]) -> None:
        """Have what these ranks have recorded of a stream since their moments."""
        since = {each.whole: each.since_ns for each in ranks if not each.whole.has_rows(stream)}
        found = self._tables(
            list(since), lambda source, some: source.rows(stream, {rank: since[rank] for rank in some})
        )
        for each in ranks:
            if each.whole in found:
                each.put(stream, found[each.whole])
            elif not each.whole.left:
                each.put(stream, each.whole.rows(stream).table)

    def _tables(self, ranks: Sequence[Rank], get: Callable[[Source, list[Rank]], Tables]) -> Tables:
        """What the sources of these ranks give.  Raises what nobody() says once no rank is left."""
        left = len(self.silent)
        found: Tables = self._of_sources(ranks, get)
        if ranks and not self.ranks:
            raise nobody([one.error for one in self.silent[left:]])
        return found

    def _of_sources(self, ranks: Sequence[Rank], get: Callable[[Source, list[Rank]], Mapping[Rank, Any]]) -> Any:
        by_source: dict[int, list[Rank]] = {}
        for rank in ranks:
            by_source.setdefault(id(rank.source), []).append(rank)
        return {rank: value for some in by_source.values() for rank, value in get(some[0].source, some).items()}

    def ask(self, kind: str) -> dict[Rank, Any]:
        """What each rank answers to a request without fields, asked once; nothing of ranks that are only read."""
        if kind not in self._answers:
            self._answers[kind] = self._of_sources(self.ranks, lambda source, some: source.ask(kind, some))
        return {rank: answer for rank, answer in self._answers[kind].items() if not rank.left}

    def leave(self, rank: Rank, error: ProbeError) -> None:
        """This rank does not answer any more; nothing of it is seen from here on."""
        if not rank.left:
            rank.left = True
            self.ranks.remove(rank)
            self.silent.append(SilentRank(rank.rank, rank.pid, error))

    @cached_property
    def completed(self) -> int | None:
        """The last step that every rank has completed; None as long as one has not completed any."""
        lasts = [rank.timeline.completed for rank in self.ranks if rank.timeline.steps]
        return None if not lasts or None in lasts else min(last for last in lasts if last is not None)
