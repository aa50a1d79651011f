"""Rows of a table that a connection has made before, for its next query: of steps that are long over.

Called by probe.query.table_scan.  Invariant: they are the rows that would be made anew; where something came late that
belongs to their steps, or their names have changed, there is nothing on the shelf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..arrays.distinct import distinct
from ..arrays.dtypes import Ints
from ..snapshot.snapshot import Rank
from ..streams import DEVICE, PACKING_NS, WRITTEN
from ..tables.declaration import Table
from .lazy_columns import LazyColumns

_BACK = 2  # steps before the newest one: some of their rows may still come
WORTH = 1 << 15  # rows: fewer are made anew each time
AT_ONCE = 1 << 16  # rows that go together, when the agent's memory has lost the oldest of them
_MOST = 1 << 22  # rows of a rank's table; what they are made of is held too


@dataclass
class DerivedCache:
    """upto: the first step that is not on it; seen: number of the last row of each stream when it was filled."""

    known: tuple[Any, ...]
    upto: int
    seen: dict[str, int] = field(default_factory=dict)
    pieces: list[tuple[Ints, LazyColumns]] = field(default_factory=list)  # with the step of each row, which rise
    rows: int = 0

    def since(self, step: int) -> list[LazyColumns]:
        """Those with rows of this step or later ones; maybe earlier ones too."""
        return [piece for steps, piece in self.pieces if steps[-1] >= step]

    def forget(self, before: int) -> None:
        """Rows of earlier steps are not seen any more."""
        self.pieces = [(steps, piece) for steps, piece in self.pieces if steps[-1] >= before]
        if self.pieces and self.pieces[0][0][0] < before:
            steps, piece = self.pieces[0]
            self.pieces[0] = steps[steps >= before], piece.of(steps >= before)

    def add(self, piece: LazyColumns, rows: Ints) -> None:
        """rows: by step."""
        steps = piece.steps[rows]
        cuts = distinct(np.searchsorted(steps, steps[AT_ONCE - 1 :: AT_ONCE], side="right"))
        for each in np.split(np.arange(len(rows)), cuts[cuts < len(rows)]):
            self.pieces.append((steps[each], piece.of(rows[each])))
        self.rows += len(rows)


def shelf_of(raw: Rank, table: Table) -> DerivedCache | None:
    """What is there, as long as it is true.  Raises Left."""
    lay: Callable[[], DerivedCache | None] = raw.shelves.pop(table.name, lambda: None)
    shelf = lay()
    if shelf is None or shelf.known != _known(raw) or any(_came_late(raw, each, shelf) for each in table.streams):
        return None
    raw.shelves[table.name] = lambda: shelf
    shelf.forget(_oldest(raw, table))
    return shelf if shelf.pieces else None


def lay_by(raw: Rank, table: Table, piece: LazyColumns, shelf: DerivedCache | None) -> None:
    """Have what is final of these rows kept, once a query comes; shelf: what was there before them.  Raises Left."""
    new = DerivedCache(_known(raw), _final(raw, table), {stream: raw.recorded(stream) for stream in table.streams})
    raw.shelves[table.name] = partial(_laid_by, new, piece, shelf)


def _laid_by(new: DerivedCache, piece: LazyColumns, old: DerivedCache | None) -> DerivedCache | None:
    step, begin = piece.steps, old.upto if old else np.iinfo(np.int64).min
    rows = np.flatnonzero((step >= begin) & (step < new.upto))
    if len(rows) < WORTH or len(rows) + (old.rows if old else 0) > _MOST:
        return old
    shelf = old or new
    shelf.add(piece, rows[np.argsort(step[rows], kind="stable")])
    shelf.upto, shelf.seen = new.upto, new.seen
    return shelf


def _known(raw: Rank) -> tuple[Any, ...]:
    return raw.facts.get("step_base"), raw.facts.get("step_source"), raw.log.renamed


def _final(raw: Rank, table: Table) -> int:
    """The first step of which something may still come."""
    completed = raw.snapshot.completed
    if completed is None or not raw.timeline.incomplete:
        return np.iinfo(np.int64).min
    last = min(completed + 1, raw.timeline.unfinished)
    if DEVICE in table.streams and len(timed := raw.rows(DEVICE)):
        last = min(last, int(raw.timeline.counted(timed["host_ns"][-1:])[0]))
    return int(last) - _BACK


def _came_late(raw: Rank, stream: str, shelf: DerivedCache) -> bool:
    """Whether a row that is new belongs to a step on the shelf, or runs around one."""
    rows = raw.rows(stream)
    begin = rows["host_ns" if stream == DEVICE else rows.slots[0]]
    new = int(np.searchsorted(rows["seq"], shelf.seen.get(stream, 0), side="right"))
    border = raw.timeline.time_before(shelf.upto, 0)
    return border is None or bool((begin[new:] < border).any())


def _oldest(raw: Rank, table: Table) -> int:
    """The first step of which every row is still in the agent's memory."""
    lost = [
        rows[WRITTEN[stream]][:1] for stream in table.streams if len(rows := raw.rows(stream)) and rows["seq"][0] > 1
    ]
    return max((int(raw.timeline.counted(time + PACKING_NS)[0]) + 1 for time in lost), default=0)
