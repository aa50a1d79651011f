"""A long history as partitions by blocks of steps: arrays fit into the processor's caches, and memory is used again.

Called by probe.query.table_scan for tables that are declared in_blocks.  A block holds what was recorded from some
steps before its first step to the end of everything that began in its last one.  Invariant: it gives the rows that the
whole history gives for its steps, as long as modules go on to be called by those that called them first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..arrays.integers import Ints, distinct
from ..derive.partition import Partition
from ..snapshot.rows import Rows
from ..snapshot.timeline import Timeline
from ..streams import COLLECTIVES, DEVICE, ENGINE, FORWARD, KIND_MASK, MARKS, OPTIMIZER, SPANS

STEPS_BEFORE = 3  # before the first one wanted: what runs across a boundary is whole in the steps after it
IN_FLIGHT_STEPS = 64  # likewise, for operations between ranks, which may go on for long beside the training
ROWS_A_BLOCK = 1 << 18  # about
MAX_COPIES = 2  # of each row over all blocks: a call around all steps would put every row into each block
LOOKED_UP_TOGETHER = 1 << 10  # rows: whether a block needs them is decided for all of them at once
_FAR = 1 << 62


@dataclass(frozen=True)
class _Block:
    """These steps, and the moments from which and until which what they need may have begun."""

    steps: range
    begin: int
    end: int


def blocks_of(part: Partition) -> list[Partition] | None:
    """None where blocks are not worth it, or not possible."""
    spans, marks, timed, operations = (part.rows(stream) for stream in (SPANS, MARKS, DEVICE, COLLECTIVES))
    count = (len(spans) + len(marks)) // ROWS_A_BLOCK
    if count < 2 or len(timed) or not part.timeline.incomplete or not len(part.timeline.boundaries):
        return None
    of_spans, of_marks = _Times(spans, "start_ns", "end_ns"), _Times(marks, "time_ns", "time_ns")
    blocks, rows = list[Partition](), 0
    for block in _blocks(part.timeline, spans["end_ns"][len(spans) * np.arange(1, count) // count]):
        running = of_spans.running_at(block.end)
        whole = np.isin(running["flags"] & KIND_MASK, (FORWARD, ENGINE, OPTIMIZER))
        until = int(running["end_ns"][whole].max(initial=block.end))
        streams = {
            SPANS: of_spans.between(block.begin, until), MARKS: of_marks.between(block.begin, until), DEVICE: timed,
            COLLECTIVES: operations,
        }  # fmt: skip
        rows += len(streams[SPANS]) + len(streams[MARKS])
        blocks.append(replace(part, rows=streams.__getitem__, steps=block.steps))
    return blocks if rows <= MAX_COPIES * (len(spans) + len(marks)) else None


def _blocks(timeline: Timeline, moments: Ints) -> Iterator[_Block]:
    """One up to the end of the step of each moment, and the last one."""
    closings = timeline.closings.time
    places = distinct(np.searchsorted(closings, moments))
    places = places[(places >= STEPS_BEFORE) & (places < len(closings) - 1)]
    firsts = [-_FAR, *timeline.step(closings[places]).tolist(), _FAR]
    begins = [-_FAR, *closings[places - STEPS_BEFORE].tolist()]
    return map(_Block, map(range, firsts, firsts[1:]), begins, [*closings[places].tolist(), _FAR])


class _Times:
    """When the rows of a stream began and ended, looked up for LOOKED_UP_TOGETHER of them at once."""

    def __init__(self, rows: Rows, start: str, end: str) -> None:
        self._rows, self._start, self._end = rows, start, end
        self._first = np.arange(0, len(rows), LOOKED_UP_TOGETHER)
        self._begun = np.minimum.reduceat(rows[start], self._first) if len(rows) else rows[start]
        self._ended = np.maximum.reduceat(rows[end], self._first) if len(rows) else rows[end]

    def running_at(self, moment: int) -> Rows:
        found = self.between(moment, moment)
        return found.of((found[self._start] < moment) & (found[self._end] > moment))

    def between(self, begin: int, until: int) -> Rows:
        """All rows that ended at `begin` or later and began up to `until`, and some others."""
        chosen = np.flatnonzero((self._ended >= begin) & (self._begun <= until))
        if not len(chosen):
            return self._rows.of(slice(0, 0))
        if chosen[-1] - chosen[0] < len(chosen):
            return self._rows.of(slice(self._first[chosen[0]], self._first[chosen[-1]] + LOOKED_UP_TOGETHER))
        places = self._first[chosen][:, None] + np.arange(LOOKED_UP_TOGETHER)
        return self._rows.of(places[places < len(self._rows)])
