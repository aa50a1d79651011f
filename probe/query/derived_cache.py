"""Rows of tables that a connection has derived before, kept for its next query: those of steps that are long over.

Called by probe.query.table_scan.  Invariant: cached rows are the ones that would be derived anew.  If a row came late
that belongs to their steps, or names have changed, the cache is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..arrays.integers import Ints, distinct
from ..snapshot.log import Log
from ..snapshot.source import Rank
from ..streams import DEVICE, PACKING_NS, WRITTEN
from ..tables.declaration import Table
from .lazy_columns import LazyColumns

_STEPS_BACK = 2  # before the newest step: some of their rows may still come
WORTH_CACHING = 1 << 15  # rows; fewer are derived anew each time
ROWS_A_PIECE = 1 << 16  # they are dropped together when the agent's memory has lost the oldest of them
_NOWHERE = int(np.iinfo(np.int64).min)
_MAX_ROWS = 1 << 22  # of a rank's table; what they are derived from is held too


@dataclass
class DerivedCache:
    """Rows of a rank's table.  names: what decides about names and numbers; upto: the first step that is not cached;
    seen: the number of the last row of each stream at that time; pieces: with the step of each row, rising."""

    names: tuple[Any, ...]
    upto: int
    seen: dict[str, int]
    pieces: list[tuple[Ints, LazyColumns]] = field(default_factory=list)
    rows: int = 0

    def since(self, step: int | None) -> list[LazyColumns]:
        """The pieces with rows of this step or later ones, maybe of earlier ones too; None: all of them."""
        return [piece for steps, piece in self.pieces if step is None or steps[-1] >= step]

    def drop_before(self, step: int) -> None:
        """Rows of earlier steps must not be seen any more."""
        self.pieces = [(steps, piece) for steps, piece in self.pieces if steps[-1] >= step]
        if self.pieces and self.pieces[0][0][0] < step:
            steps, piece = self.pieces[0]
            self.pieces[0] = steps[steps >= step], piece.take(steps >= step)

    def add(self, piece: LazyColumns, rows: Ints) -> None:
        """rows: places in the piece, by step."""
        steps = piece.steps[rows]
        cuts = distinct(np.searchsorted(steps, steps[ROWS_A_PIECE - 1 :: ROWS_A_PIECE], side="right"))
        for each in np.split(np.arange(len(rows)), cuts[cuts < len(rows)]):
            self.pieces.append((steps[each], piece.take(rows[each])))
        self.rows += len(rows)


@dataclass
class Pending:
    """Rows that are to be cached once another query comes: sorting them by step takes time, and there may be none."""

    new: DerivedCache
    piece: LazyColumns
    old: DerivedCache | None

    def filed(self) -> DerivedCache | None:
        steps, begin = self.piece.steps, self.old.upto if self.old else _NOWHERE
        rows = np.flatnonzero((steps >= begin) & (steps < self.new.upto))
        if len(rows) < WORTH_CACHING or len(rows) + (self.old.rows if self.old else 0) > _MAX_ROWS:
            return self.old
        cache = self.old or self.new
        cache.add(self.piece, rows[np.argsort(steps[rows], kind="stable")])
        cache.upto, cache.seen = self.new.upto, self.new.seen
        return cache


class DerivedCaches:
    """Those of a connection, by rank and table.  A rank's go with its log, when another agent takes its place."""

    def __init__(self) -> None:
        self.by_log: WeakKeyDictionary[Log, dict[str, DerivedCache | Pending]] = WeakKeyDictionary()

    def get(self, rank: Rank, table: Table) -> DerivedCache | None:
        """What is cached, if it still holds.  Raises RankLeft."""
        of_rank = self.by_log.get(rank.log, {})
        found = of_rank.pop(table.name, None)
        cache = found.filed() if isinstance(found, Pending) else found
        if cache is None or cache.names != _names(rank) or any(_came_late(rank, each, cache) for each in table.streams):
            return None
        of_rank[table.name] = cache
        cache.drop_before(_oldest(rank, table))
        return cache if cache.pieces else None

    def put(self, rank: Rank, table: Table, piece: LazyColumns, cache: DerivedCache | None) -> None:
        """Cache what is final of these rows; cache: what holds the rows before them.  Raises RankLeft."""
        upto = first_open(rank, table.streams)
        new = DerivedCache(
            _names(rank),
            upto if rank.timeline.incomplete else _NOWHERE,
            {stream: rank.recorded(stream) for stream in table.streams},
        )
        self.by_log.setdefault(rank.log, {})[table.name] = Pending(new, piece, cache)


def _names(rank: Rank) -> tuple[Any, ...]:
    return rank.facts.step_base, rank.facts.step_source, rank.log.renamed


def first_open(rank: Rank, streams: Sequence[str]) -> int:
    """The first step that rows of these streams may still be added to.  Raises RankLeft."""
    completed = rank.snapshot.completed
    if completed is None:
        return _NOWHERE
    last = min(completed + 1, rank.timeline.unfinished)
    if DEVICE in streams and len(timed := rank.rows(DEVICE)):
        last = min(last, int(rank.timeline.counted(timed["host_ns"][-1:])[0]))
    return int(last) - _STEPS_BACK


def _came_late(rank: Rank, stream: str, cache: DerivedCache) -> bool:
    """Whether a new row belongs to a cached step, or runs around one."""
    rows = rank.rows(stream)
    begin = rows["host_ns" if stream == DEVICE else rows.slots[0]]
    new = int(np.searchsorted(rows["seq"], cache.seen.get(stream, 0), side="right"))
    border = rank.timeline.time_before(cache.upto, 0)
    return border is None or bool((begin[new:] < border).any())


def _oldest(rank: Rank, table: Table) -> int:
    """The first step of which every row is still in the agent's memory, as far as it has lost any."""
    lost = [
        rows[WRITTEN[stream]][:1] for stream in table.streams if len(rows := rank.rows(stream)) and rows["seq"][0] > 1
    ]
    return max((int(rank.timeline.counted(time + PACKING_NS)[0]) + 1 for time in lost), default=_NOWHERE)
