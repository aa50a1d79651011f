"""A table of one snapshot, made when DuckDB asks for it: of the ranks, steps and columns that the query wants.

Called by probe.query.database.  Invariant: however it is cut, what a filter lets through is the same as of the whole
table.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from ..arrays.arrow import ARROW_TYPES, schema_of
from ..schema import Columns
from ..snapshot.snapshot import Rank, RankLeft, Snapshot
from ..tables import TABLES
from ..tables.declaration import Table
from .derived_cache import DerivedCache, lay_by, shelf_of
from .filter_pruning import first_step, possible_ranks
from .identity_columns import with_common
from .lazy_columns import LazyColumns
from .rank_batch import Group, Share, groups_of
from .step_blocks import BEFORE, blocks_of
from .worker import Worker


class TableScan:
    """scan() may be called several times in a query, by one thread at a time."""

    def __init__(self, table: Table, job: Snapshot, helper: Worker, pruned: bool = True) -> None:
        self.table, self._job, self._helper, self._pruned = table, job, helper, pruned
        self.scanned = False
        self._of_job: LazyColumns | None = None
        self._of_ranks: dict[Rank, tuple[int | None, list[LazyColumns]]] = {}  # with the first step that is whole in it

    def scan(self, columns: list[str] | None, filter: Any) -> Any:
        self.scanned = True
        wanted = set([column.name for column in self.table.columns] if columns is None else columns)
        if filter is not None:
            text = str(filter)
            wanted |= {column.name for column in self.table.columns if column.name in text}
        declared = [column for column in self.table.columns if column.name in wanted] or [self.table.columns[0]]
        return ds.dataset(self._arrow(declared, self._pieces(filter))).scanner(columns=columns, filter=filter)

    def _arrow(self, declared: Sequence[Any], pieces: Iterable[LazyColumns]) -> Any:
        chunks: list[list[Any]] = [[] for _ in declared]
        for piece in pieces:
            piece.have(declared)
            for all_of_column, column in zip(chunks, declared, strict=True):
                all_of_column += piece.chunks(column)
        arrays = [
            pa.chunked_array(each, ARROW_TYPES[column.type]) for each, column in zip(chunks, declared, strict=True)
        ]
        return pa.table(arrays, schema=schema_of(declared))

    def _pieces(self, filter: Any) -> list[LazyColumns]:
        if self.table.derive is None:
            self._of_job = self._of_job or LazyColumns(self._values())
            return [self._of_job]
        filter = filter if self._pruned else None
        ranks = possible_ranks(filter, [raw.rank for raw in self._job.ranks])
        chosen = [raw for raw in self._job.ranks if raw.rank in ranks]
        first = self._first_step(filter)
        self._derive([raw for raw in chosen if not self._reaches(raw, first)], first)
        return _whole_groups([piece for raw in chosen if not raw.left for piece in self._of_ranks[raw][1]])

    def _values(self) -> Columns:
        """Of a table that is not derived rank by rank."""
        if self.table.derive_catalogue is not None:
            return self.table.derive_catalogue(TABLES)
        assert self.table.derive_job is not None
        return self.table.derive_job(self._job)

    @property
    def _by_step(self) -> bool:
        return self.table.by_step and self._pruned and not self._job.open_steps and self._job.completed is not None

    def _first_step(self, filter: Any) -> int | None:
        return first_step(filter, self._job.completed or 0) if self._by_step else None

    def _reaches(self, raw: Rank, first: int | None) -> bool:
        """Whether the rows of this rank are here from that step on."""
        if raw not in self._of_ranks:
            return False
        from_step = self._of_ranks[raw][0]
        return from_step is None or (first is not None and from_step <= first)

    def _derive(self, raws: Sequence[Rank], first: int | None) -> None:
        assert self.table.derive is not None
        shelves = {raw: self._shelf(raw, first) for raw in raws}
        begins = {raw: first if shelf is None else shelf.upto for raw, shelf in shelves.items()}
        since = {raw: None if (step := begins[raw]) is None else raw.timeline.time_before(step, BEFORE) for raw in raws}
        parts = self._parts(since)
        for part in parts:  # first of all, so that a rank that falls silent is in no result
            for stream in self.table.streams:
                _have(part, stream)
        alone = dict(zip(raws, parts, strict=True))
        for raw in self._put_together({raw: part for raw, part in alone.items() if shelves[raw] is None}, first, since):
            del alone[raw]
        for raw, part in alone.items():
            with contextlib.suppress(RankLeft):
                self._put(raw, self._piece(part), first, since[raw], shelves[raw])

    def _piece(self, part: Rank) -> LazyColumns:
        assert self.table.derive is not None
        blocks = blocks_of(part, self.table.derive, self._helper) if self._by_step and self.table.in_blocks else None
        return blocks or LazyColumns(with_common(part, self.table.derive(part)))

    def _put_together(
        self, parts: Mapping[Rank, Rank], first: int | None, since: Mapping[Rank, int | None]
    ) -> list[Rank]:
        """Take those that can be derived as one; the ranks of which that was done."""
        if not self._by_step:
            return []
        assert self.table.derive is not None
        of_parts = {part: raw for raw, part in parts.items() if not raw.left}
        done = list[Rank]()
        for members in groups_of(list(of_parts), self.table.streams):
            group = Group(members, self.table.streams, self.table.derive)
            for part, share in zip(members, group.shares, strict=True):
                raw = of_parts[part]
                self._of_ranks[raw] = None if since[raw] is None else first, [share]
                done.append(raw)
        return done

    def _put(
        self, raw: Rank, piece: LazyColumns, first: int | None, since: int | None, shelf: DerivedCache | None
    ) -> None:
        """Take these rows, which begin at that moment, and what is on the shelf before them."""
        if shelf is None:
            pieces, begin = [piece], None if since is None else first
        else:
            before = -1 if first is None else first
            pieces, begin = [*shelf.since(before), piece.of(piece.steps >= shelf.upto)], first
        self._of_ranks[raw] = begin, pieces
        if self._by_step and (since is None or shelf is not None):
            lay_by(raw, self.table, piece, shelf)

    def _shelf(self, raw: Rank, first: int | None) -> DerivedCache | None:
        """Of use to what is wanted."""
        with contextlib.suppress(RankLeft):
            if self._by_step and (shelf := shelf_of(raw, self.table)) and (first is None or first < shelf.upto):
                return shelf
        return None

    def _parts(self, since: Mapping[Rank, int | None]) -> Sequence[Rank]:
        """The ranks to derive from; whole ones, where every rank is wanted whole: other tables want them too."""
        if len(since) == len(self._job.ranks) and not any(moment is not None for moment in since.values()):
            return list(since)
        return self._job.recent(since)


def _whole_groups(pieces: Sequence[LazyColumns]) -> list[LazyColumns]:
    """With the piece of a whole group in the place of all its shares."""
    shares = Counter(piece.group for piece in pieces if isinstance(piece, Share))
    whole = {group for group, count in shares.items() if count == len(group.shares)}
    others = [piece for piece in pieces if not isinstance(piece, Share) or piece.group not in whole]
    return [*(group.piece for group in whole), *others]


def _have(raw: Rank, stream: str) -> None:
    try:
        raw.rows(stream)
    except RankLeft:
        return
