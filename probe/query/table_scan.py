"""A table of one snapshot, derived when DuckDB asks for it, for the ranks, steps and columns that the query wants.

Called by probe.query.database.  A plan (which ranks, from which step on) becomes partitions (a rank, blocks of its
steps, or several ranks at once); the table's derive() makes the rows of each; what is final of them is cached.
Invariant: whatever the plan and the partitions, the filter lets through the same rows as of the whole table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from ..arrays.arrow import ARROW_TYPES, schema_of
from ..derive.partition import Partition
from ..schema import Column, Columns
from ..snapshot.snapshot import RecentRows, Snapshot
from ..snapshot.source import Rank, RankLeft
from ..snapshot.timeline import Timeline
from ..streams import COLLECTIVES
from ..tables import TABLES
from ..tables.declaration import Table
from .derived_cache import DerivedCache, DerivedCaches
from .duckdb_session import Worker
from .filter_pruning import Filter
from .lazy_columns import LazyColumns, derived, derived_each, derived_in_parts
from .rank_batch import batches_of, derived_together
from .step_blocks import IN_FLIGHT_STEPS, STEPS_BEFORE, blocks_of


@dataclass(frozen=True)
class _Derived:
    """All rows of these ranks from a step on; first: None for every step."""

    ranks: tuple[Rank, ...]
    first: int | None
    pieces: list[LazyColumns]

    def reaches(self, step: int | None) -> bool:
        return self.first is None or (step is not None and self.first <= step)


class TableScan:
    """scan() may be called several times in a query, by one thread at a time."""

    def __init__(
        self, table: Table, snapshot: Snapshot, worker: Worker, caches: DerivedCaches, pruned: bool = True
    ) -> None:
        self.table = table
        self._snapshot, self._worker, self._caches, self._pruned = snapshot, worker, caches, pruned
        self._derived: list[_Derived] = []  # no two of the same rank
        self._of_job: LazyColumns | None = None

    def scan(self, columns: list[str] | None, filter: Any) -> Any:
        """A scanner over the rows that may pass the filter; columns: None for all."""
        examined = Filter(filter)
        wanted = [
            column for column in self.table.columns
            if columns is None or column.name in columns or examined.names(column.name)
        ] or [self.table.columns[0]]  # fmt: skip
        table = _arrow(wanted, self._pieces(examined if self._pruned else Filter(None)))
        return ds.dataset(table).scanner(columns=columns, filter=filter)

    def _pieces(self, filter: Filter) -> list[LazyColumns]:
        if self.table.derive is None:
            self._of_job = self._of_job or LazyColumns.of(self._columns_of_job())
            return [self._of_job]
        numbers = filter.possible_ranks([rank.rank for rank in self._snapshot.ranks])
        first = filter.first_step(self._snapshot.completed or 0) if self._by_step else None
        while missing := self._missing(numbers, first):  # again, if ranks that were derived together have left
            self._derive(self.table.derive, missing, first)
        wanted = (each for each in self._derived if any(rank.rank in numbers for rank in each.ranks))
        return [piece for each in wanted for piece in each.pieces]

    def _columns_of_job(self) -> Columns:
        if self.table.derive_catalogue is not None:
            return self.table.derive_catalogue(TABLES)
        assert self.table.derive_job is not None
        return self.table.derive_job(self._snapshot)

    @property
    def _by_step(self) -> bool:
        """Whether the table can be derived from a step on."""
        job = self._snapshot
        return self.table.by_step and self._pruned and not job.open_steps and job.completed is not None

    @property
    def _in_blocks(self) -> bool:
        """Whether the table can be derived in blocks of steps, and those that are over be kept."""
        return self.table.in_blocks and self._by_step

    def _missing(self, numbers: set[int], first: int | None) -> list[Rank]:
        """The ranks of these numbers whose rows are not here from that step on."""
        self._derived = [each for each in self._derived if not any(rank.left for rank in each.ranks)]
        here = {rank for each in self._derived if each.reaches(first) for rank in each.ranks}
        return [rank for rank in self._snapshot.ranks if rank.rank in numbers and rank not in here]

    def _derive(self, derive: Callable[[Partition], Columns], ranks: Sequence[Rank], first: int | None) -> None:
        """Have all rows of these ranks from that step on, if they do not leave."""
        caches = {rank: self._cache(rank, first) for rank in ranks}
        begins = {rank: first if cache is None else cache.upto for rank, cache in caches.items()}
        since, since_issued = (
            {rank: None if step is None else rank.timeline.time_before(step, steps) for rank, step in begins.items()}
            for steps in (STEPS_BEFORE, IN_FLIGHT_STEPS)
        )
        parts = self._fetched(since, {COLLECTIVES: since_issued})
        if self._in_blocks and self.table.in_batches:
            for batch in batches_of([part for rank, part in parts.items() if caches[rank] is None], self.table.streams):
                work = partial(derived_together, batch, self.table.streams, derive)
                piece = derived_in_parts([work], self._worker)
                members = tuple(part.rank for part in batch)
                from_start = all(since[rank] is None for rank in members)
                self._put(_Derived(members, None if from_start else first, [piece]))
                for rank in members:
                    del parts[rank]
        for rank, part in parts.items():
            with contextlib.suppress(RankLeft):
                blocks = blocks_of(part) if self._in_blocks else None
                piece = (
                    derived(part, derive)
                    if blocks is None
                    else derived_in_parts([partial(derived_each, [block], derive) for block in blocks], self._worker)
                )
                self._put_rank(rank, piece, first, since[rank] is None, caches[rank])

    def _cache(self, rank: Rank, first: int | None) -> DerivedCache | None:
        """The rank's cache, if it has rows that are wanted."""
        with contextlib.suppress(RankLeft):
            cache = self._caches.get(rank, self.table) if self._in_blocks else None
            if cache is not None and (first is None or first < cache.upto):
                return cache
        return None

    def _fetched(
        self, since: Mapping[Rank, int | None], of_streams: Mapping[str, Mapping[Rank, int | None]]
    ) -> dict[Rank, Partition]:
        """Each rank's rows since a moment (None: all); of_streams: streams with moments of their own.  First they
        are fetched, so that a rank that falls silent is in no result.  Where everything is wanted of all ranks, the
        ranks keep it: other tables want it too."""
        everything = len(since) == len(self._snapshot.ranks) and not any(each is not None for each in since.values())
        recent = RecentRows(self._snapshot, since, of_streams)
        rows = {rank: rank.rows if everything else partial(recent.rows, rank) for rank in since}
        for of_rank in rows.values():
            for stream in self.table.streams:
                with contextlib.suppress(RankLeft):
                    of_rank(stream)
        parts = {}
        for rank, of_rank in rows.items():
            with contextlib.suppress(RankLeft):
                timeline = rank.timeline if everything else Timeline(rank, of_rank, rank.facts.step_base)
                parts[rank] = Partition(rank, of_rank, timeline)
        return {rank: part for rank, part in parts.items() if not rank.left}

    def _put_rank(
        self, rank: Rank, piece: LazyColumns, first: int | None, from_start: bool, cache: DerivedCache | None
    ) -> None:
        """Take a rank's rows, and those that are cached before them.  from_start: they begin where the stream does."""
        if self._in_blocks and (from_start or cache is not None):
            self._caches.put(rank, self.table, piece, cache)
        if cache is None:
            self._put(_Derived((rank,), None if from_start else first, [piece]))
        else:
            cached = cache.since(first)
            self._put(_Derived((rank,), first, [*cached, piece.take(piece.steps >= cache.upto)]))

    def _put(self, new: _Derived) -> None:
        """In the place of what there was of the same ranks."""
        ranks = set(new.ranks)
        self._derived = [*(each for each in self._derived if ranks.isdisjoint(each.ranks)), new]


def _arrow(columns: Sequence[Column], pieces: Iterable[LazyColumns]) -> Any:
    """These columns of all pieces, as an Arrow table."""
    chunks: list[list[Any]] = [[] for _ in columns]
    for piece in pieces:
        piece.have(columns)
        for of_column, column in zip(chunks, columns, strict=True):
            of_column += piece.chunks(column)
    arrays = [pa.chunked_array(each, ARROW_TYPES[column.type]) for each, column in zip(chunks, columns, strict=True)]
    return pa.table(arrays, schema=schema_of(columns))
