"""A long history derived in blocks of steps: arrays that the processor's caches hold, and memory that is used again.

Called by probe.query.table_scan for the tables whose declaration allows it.  A block is made of what was recorded from
some steps before its first one to the end of all that began in its last one.  Invariant: its rows are those that the
whole history gives for its steps, as long as modules go on to be called by those that called them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..arrays.distinct import distinct
from ..arrays.dtypes import Ints
from ..schema import Column, Columns
from ..snapshot.rows import Rows
from ..snapshot.snapshot import Rank
from ..streams import DEVICE, ENGINE, FORWARD, KIND_MASK, MARKS, OPTIMIZER, SPANS
from .identity_columns import with_common
from .lazy_columns import Chunks, LazyColumns, Made
from .worker import Worker

BEFORE = 3  # steps before the first one wanted: what runs across a boundary is whole in the steps after it
ROWS = 1 << 18  # of a block, about
MOST = 2  # times the rows that there are; a call around all steps would have each block made of everything
AT_ONCE = 1 << 10  # rows: whether all of them are of a block or not is looked up together
_AHEAD = 1 << 62


@dataclass(frozen=True)
class _Span:
    """Steps from `first`, before `upto`; made of what was recorded from the moment `begin` on, begun before `end`."""

    first: int
    upto: int
    begin: int
    end: int


class Block(Rank):
    """Some rows of a rank, with the steps of all."""

    def __init__(self, whole: Rank, rows: dict[str, Rows]) -> None:
        super().__init__(whole.pid, whole.facts, whole.last_seq, whole.log)
        self.snapshot, self.now_ns, self.timeline = whole.snapshot, whole.now_ns, whole.timeline
        self._rows = rows

    def rows(self, stream: str) -> Rows:
        return self._rows[stream]


class Blocks(Made):
    """All of them as one piece."""

    def __init__(
        self, blocks: Sequence[tuple[_Span, Block]], derive: Callable[[Rank], Columns], helper: Worker
    ) -> None:
        super().__init__(self._derived)
        self.blocks, self._derive, self._helper = blocks, derive, helper
        self._steps: Ints | None = None

    @property
    def steps(self) -> Ints:
        if self._steps is None:
            self._derived([])
            assert self._steps is not None
        return self._steps

    def _derived(self, columns: Sequence[Column]) -> Chunks:
        def derived(part: tuple[_Span, Block]) -> tuple[Ints, list[list[Any]]]:
            span, block = part
            piece = LazyColumns(with_common(block, self._derive(block)))
            here = (piece.steps >= span.first) & (piece.steps < span.upto)
            piece = piece if here.all() else piece.of(here)
            return piece.steps, [piece.chunks(column) for column in columns]

        steps, chunks = zip(*self._helper.share(derived, self.blocks), strict=True)
        self._steps = np.concatenate(steps)
        of_columns = (list(chain.from_iterable(each)) for each in zip(*chunks, strict=True))
        return dict(zip((column.name for column in columns), of_columns, strict=True))


def blocks_of(raw: Rank, derive: Callable[[Rank], Columns], helper: Worker) -> Blocks | None:
    """None where it is not worth it, or not possible."""
    spans, marks, timed = (raw.rows(stream) for stream in (SPANS, MARKS, DEVICE))
    count = (len(spans) + len(marks)) // ROWS
    if count < 2 or len(timed) or not raw.timeline.incomplete or not len(raw.timeline.boundaries):
        return None
    of_spans, of_marks = _Times(spans, "start_ns", "end_ns"), _Times(marks, "time_ns", "time_ns")
    blocks, rows = list[tuple[_Span, Block]](), 0
    for span in _spans(raw, spans["end_ns"][len(spans) * np.arange(1, count) // count]):
        across = of_spans.across(span.end)
        whole = np.isin(across["flags"] & KIND_MASK, (FORWARD, ENGINE, OPTIMIZER))
        until = int(across["end_ns"][whole].max(initial=span.end))
        cut = {SPANS: of_spans.between(span.begin, until), MARKS: of_marks.between(span.begin, until), DEVICE: timed}
        rows += len(cut[SPANS]) + len(cut[MARKS])
        blocks.append((span, Block(raw, cut)))
    return Blocks(blocks, derive, helper) if rows <= MOST * (len(spans) + len(marks)) else None


def _spans(raw: Rank, moments: Ints) -> Iterator[_Span]:
    """Each to the end of the step of its moment."""
    timeline = raw.timeline
    closings = timeline.closings.time
    places = distinct(np.searchsorted(closings, moments))
    places = places[(places >= BEFORE) & (places < len(closings) - 1)]
    firsts = [-_AHEAD, *timeline.step(closings[places]).tolist(), _AHEAD]
    begins = [-_AHEAD, *closings[places - BEFORE].tolist()]
    return map(_Span, firsts, firsts[1:], begins, [*closings[places].tolist(), _AHEAD])


class _Times:
    """When the rows of a stream began and ended, by so many at once."""

    def __init__(self, rows: Rows, start: str, end: str) -> None:
        self._rows, self._start, self._end = rows, start, end
        self._first = np.arange(0, len(rows), AT_ONCE)
        self._begun = np.minimum.reduceat(rows[start], self._first) if len(rows) else rows[start]
        self._ended = np.maximum.reduceat(rows[end], self._first) if len(rows) else rows[end]

    def across(self, moment: int) -> Rows:
        """Those that ran then."""
        found = self.between(moment, moment)
        return found.of((found[self._start] < moment) & (found[self._end] > moment))

    def between(self, begin: int, until: int) -> Rows:
        """All that ended at `begin` or later and began up to `until`, and others beside them."""
        chosen = np.flatnonzero((self._ended >= begin) & (self._begun <= until))
        if not len(chosen):
            return self._rows.of(slice(0, 0))
        if chosen[-1] - chosen[0] < len(chosen):
            return self._rows.of(slice(self._first[chosen[0]], self._first[chosen[-1]] + AT_ONCE))
        places = self._first[chosen][:, None] + np.arange(AT_ONCE)
        return self._rows.of(places[places < len(self._rows)])
