"""One snapshot of a job as the tables see it: rows, log, facts and steps of every rank that answered.

Made by Connection.snapshot, read by the tables.  Invariant: everything read through one Snapshot belongs to one moment,
and no row is fetched twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from operator import attrgetter
from typing import Any

from ..arrays.integers import Ints
from ..client.agent_link import nobody
from ..errors import ProbeError
from ..streams import PACKING_NS, STEPS, WRITTEN
from .rows import Rows
from .source import Rank, RankLeft, SilentRank, Source
from .stacks import Thread
from .steps_known import completed_by_all


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

    def fetch(self, stream: str, oldest: bool = False) -> None:
        """Have all rows of a stream, or just its oldest ones, of all ranks."""
        silent = len(self.silent)
        for source, ranks in _by_source(rank for rank in self.ranks if not rank.has_rows(stream, oldest)):
            tables = source.oldest(stream, ranks) if oldest else source.rows(stream, dict.fromkeys(ranks))
            for rank, table in tables.items():
                rank.put(stream, table, oldest)
        self._require_ranks(silent)

    def ranks_with(self, *streams: str) -> list[Rank]:
        """The ranks, once all rows of these streams are here: one that falls silent meanwhile is not among them."""
        for stream in streams:
            self.fetch(stream)
        return [*self.ranks]

    def one_by_one(self) -> Iterator[Rank]:
        """Each rank, as if it were the only one: what is fetched or asked meanwhile is of it alone, and fetching raises
        SilentError if it leaves.  Steps are those completed by all.  Raises SilentError if none is left at the end."""
        silent = len(self.silent)
        self.completed  # noqa: B018  cached, of all
        every, self.ranks = self.ranks, []
        for rank in every:
            self.ranks = [rank]
            self._answers.clear()
            yield rank
        self.ranks = [rank for rank in every if not rank.left]
        self._answers.clear()
        self._require_ranks(silent)

    def fetch_since(self, stream: str, since_ns: Mapping[Rank, int | None]) -> dict[Rank, Rows]:
        """The rows of a stream that these ranks have recorded since about a moment of each, or all of them (None)."""
        silent, found = len(self.silent), dict[Rank, Ints]()
        since = {rank: None if moment is None else moment - 2 * PACKING_NS for rank, moment in since_ns.items()}
        for source, ranks in _by_source(rank for rank in since if not rank.left and not rank.has_rows(stream)):
            found |= source.rows(stream, {rank: since[rank] for rank in ranks})
        self._require_ranks(silent)
        rows = {}
        for rank, moment in since.items():
            if moment is None and rank in found:
                rank.put(stream, found[rank])
            if not rank.left:
                of_rank = rank.rows(stream) if rank.has_rows(stream) else Rows(rank.slots(stream), found[rank])
                rows[rank] = of_rank if moment is None else of_rank.since(WRITTEN[stream], moment)
        return rows

    def _require_ranks(self, silent: int) -> None:
        """Raises what nobody() says once no rank is left of those after the first `silent` silent ones."""
        if len(self.silent) > silent and not self.ranks:
            raise nobody([one.error for one in self.silent[silent:]])

    def ask(self, kind: str) -> dict[Rank, Any]:
        """What each rank answers to a request without fields, asked once; nothing of ranks that are only read."""
        if kind not in self._answers:
            answers: dict[Rank, Any] = {}
            for source, ranks in _by_source(self.ranks):
                answers |= source.ask(kind, ranks)
            self._answers[kind] = answers
        return {rank: answer for rank, answer in self._answers[kind].items() if not rank.left}

    def stacks(self) -> dict[Rank, list[Thread]]:
        """Where the threads of each rank stand now, also of those that are only read."""
        found: dict[Rank, list[Thread]] = {}
        for source, ranks in _by_source(self.ranks):
            found |= source.stacks(ranks)
        return {rank: threads for rank, threads in found.items() if not rank.left}

    def leave(self, rank: Rank, error: ProbeError) -> None:
        """This rank does not answer any more; nothing of it is seen from here on."""
        if not rank.left:
            rank.left = True
            self.ranks.remove(rank)
            self.silent.append(SilentRank(rank.rank, rank.pid, error))

    @cached_property
    def completed(self) -> int | None:
        """The last step that every rank has completed; None as long as one has not completed any."""
        timelines = []
        for rank in [*self.ranks]:
            with suppress(RankLeft):  # it falls silent only now
                timelines.append(rank.timeline)
        return completed_by_all(timelines)


def _by_source(ranks: Iterable[Rank]) -> list[tuple[Source, list[Rank]]]:
    found: dict[int, tuple[Source, list[Rank]]] = {}
    for rank in ranks:
        found.setdefault(id(rank.source), (rank.source, []))[1].append(rank)
    return list(found.values())


class RecentRows:
    """Of some ranks about what each has recorded since a moment (None: everything), in every stream but the steps, of
    which it has all.  of_streams: streams with moments of their own.  The first call for a stream fetches it for all
    of these ranks."""

    def __init__(
        self, snapshot: Snapshot, since_ns: Mapping[Rank, int | None],
        of_streams: Mapping[str, Mapping[Rank, int | None]],
    ) -> None:  # fmt: skip
        self._snapshot, self._since_ns, self._of_streams = snapshot, since_ns, of_streams
        self._rows: dict[str, dict[Rank, Rows]] = {}

    def rows(self, rank: Rank, stream: str) -> Rows:
        """Raises RankLeft if this rank fell silent meanwhile."""
        if stream == STEPS:
            return rank.rows(stream)
        if stream not in self._rows:
            self._rows[stream] = self._snapshot.fetch_since(stream, self._of_streams.get(stream, self._since_ns))
        if rank.left:
            raise RankLeft
        return self._rows[stream][rank]
