"""Which rows of a table are final since the last flush, as they are stored.

Called by probe.record.recorder with what its sources show.  Invariant: a row is in one flush, whatever the window that
it is derived from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays.integers import Bools, Ints
from ..derive.partition import Partition
from ..query.derived_cache import first_open
from ..query.lazy_columns import LazyColumns, derived
from ..query.step_blocks import blocks_of
from ..schema import Column
from ..snapshot.align import may_change
from ..snapshot.call_steps import CALL
from ..snapshot.source import Rank
from ..tables.declaration import DONE, Table
from .stored import stored_schema

FAR = int(np.iinfo(np.int64).max)
SETTLE_NS = 2_000_000_000  # after its end, until a row is there for certain
_HELD_NS = 600_000_000_000  # the most that an operation in flight holds back what follows it
_UNNUMBERED_NS = 600_000_000_000  # after the attach: the most that rows wait for the number of their step
_DECIDING = ("start_ns", "duration", "state", "time")
_IN_FLIGHT, _STATE, _BEGAN = "in_flight", "state", ("time", "first_time")


def pieces(table: Table, part: Partition) -> list[LazyColumns]:
    """All rows that may be seen, perhaps in blocks of steps, one of which is in memory at a time.  Raises RankLeft."""
    assert table.derive is not None
    blocks = blocks_of(part) if table.in_blocks else None
    return [derived(each, table.derive) for each in blocks or [part]]


def whole(table: Table, piece: LazyColumns) -> Any:
    """As an Arrow table with the declared columns."""
    return _columns(piece, table.columns)


def deciding(table: Table, piece: LazyColumns) -> Any:
    """Just the columns that decide which rows are final."""
    return _columns(piece, [column for column in table.columns if column.name in _DECIDING])


def _columns(piece: LazyColumns, columns: Sequence[Column]) -> Any:
    piece.have(columns)
    return pa.table({column.name: piece.joined(column) for column in columns})


def until(table: Table, rank: Rank, stops: bool = False) -> int:
    """Before which moment rows are final; later rows of this table will not come before it.  stops: rows that wait for
    the number of their step wait no longer.  Raises RankLeft."""
    settled = rank.now_ns - SETTLE_NS
    if table.final == DONE:
        return -FAR if is_unnumbered(rank) and not stops else settled
    return min(settled, begin_of(rank, first_open(rank, table.streams)))


def is_unnumbered(rank: Rank) -> bool:
    """Whether the agent may soon find out which of the job's steps those are that it counts."""
    facts = rank.facts
    has_steps = facts.torch is not None and facts.step_ends != CALL
    return has_steps and may_change(rank) and rank.now_ns < facts.attached_ns + _UNNUMBERED_NS


def first_unsettled(rank: Rank) -> int:
    """The step before which everything is there for certain.  Raises RankLeft."""
    return int(rank.timeline.step(np.array([rank.now_ns - SETTLE_NS]))[0])


def begin_of(rank: Rank, step: int) -> int:
    """When this step begins; the beginning of time where that is not known.  Raises RankLeft."""
    timeline = rank.timeline
    place = int(np.searchsorted(timeline.base + timeline.boundaries["count"], step))
    return int(timeline.closings.time[place - 1]) if place else -FAR


def moments(table: Table, rows: Any) -> Ints:
    """Of each row, what the watermark is compared with; FAR for what has not ended yet."""
    start = numbers(rows, "start_ns")
    if table.final != DONE or "duration" not in rows.column_names:
        return start
    took = pc.fill_null(rows["duration"], 0.0).to_numpy()
    return np.where(start == FAR, FAR, start + (took * 1e9).astype(np.int64))


def numbers(rows: Any, column: str) -> Ints:
    """FAR where it is NULL."""
    return np.asarray(pc.fill_null(rows[column], FAR).to_numpy(), np.int64)


def held_back(rows: Any, moment: Ints, rank: Rank) -> int:
    """The moment of the first row that is in flight, and has not been for too long; FAR if there is none."""
    if _STATE not in rows.column_names:
        return FAR
    began = next(name for name in _BEGAN if name in rows.column_names)
    recent = pc.fill_null(rows[began].cast(pa.int64()), 0).to_numpy() > rank.wall_us(np.array([rank.now_ns - _HELD_NS]))
    in_flight = pc.fill_null(pc.equal(rows[_STATE].cast(pa.string()), _IN_FLIGHT), False).to_numpy()
    return int(moment[in_flight & recent].min(initial=FAR))


class Chosen:
    """The rows of a rank's table: final ones from one watermark to the next, and later ones that can be seen.

    until: as it is known once `final` has been gone through; what is in flight holds it back.
    """

    def __init__(self, table: Table, rank: Rank, since: int, until: int) -> None:
        self._table, self._rank, self._since, self.until = table, rank, since, until
        self._last = until == FAR

    def final(self) -> Iterator[Any]:
        """In tables with rows."""
        for piece, known, moment in self._pieces():
            if not self._last:
                self.until = max(self._since, min(self.until, held_back(known, moment, self._rank)))
            yield from self._of(piece, (moment >= self._since) & ((moment < self.until) | self._last))

    def open(self) -> Iterator[Any]:
        for piece, _, moment in self._pieces():
            yield from self._of(piece, moment >= max(self.until, self._since))

    def _pieces(self) -> Iterator[tuple[LazyColumns, Any, Ints]]:
        for piece in pieces(self._table, Partition.of(self._rank)):
            known = deciding(self._table, piece)
            yield piece, known, moments(self._table, known)

    def _of(self, piece: LazyColumns, chosen: Bools) -> Iterator[Any]:
        if chosen.any():
            yield stored(self._table, whole(self._table, piece), chosen)


def stored(table: Table, rows: Any, chosen: Any) -> Any:
    """The chosen rows as files have them."""
    schema = stored_schema(table)
    taken = rows.take(pa.array(np.flatnonzero(chosen)))
    return pa.table([_cast(taken[each.name], each.type) for each in schema], schema=schema)


def _cast(column: Any, type: Any) -> Any:
    if pa.types.is_dictionary(column.type) and column.type != type:
        column = column.cast(pa.string())
    return column if column.type == type else column.cast(type)
