"""Where a step's time went: the outermost things that its thread did, and when collectives blocked it.

Called by step_trace.  Spans of one thread are nested or disjoint; where they are not (coroutines), the one that began
first has the time that they share.  Waiting for collectives takes its time from the phase around it.

A thread is blocked while it issues an operation and while it waits for one: by Work.wait or wait_tensor (spans of kind
WAIT), at once (BLOCKING), or in C++ in DDP, which sends its buffers and waits, and whose reducer waits at the end of a
backward pass for what it sent last.  Invariant: every interval was measured, and phases never exceed their step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays.integers import NONE, Arrays, Ints, distinct
from ..arrays.nesting import around, covered, united
from ..snapshot.rows import Rows
from ..streams import BLOCKING, COLLECTIVES, ENGINE, KIND_MASK, SPANS, WAIT
from .partition import Partition

_DDP = "ddp"
_HOST = ("gloo", "mpi", "ucc")  # backends whose operations are not in the order of a device's stream


@dataclass(frozen=True)
class Intervals(Arrays):
    """Things with a beginning and an end, each of a kind, in any order."""

    start: Ints
    end: Ints
    kind: Ints

    def outermost(self) -> Intervals:
        """The intervals that no other one contains, by start and disjoint."""
        ordered = self.of(np.lexsort((-self.end, self.start)))
        until = np.maximum.accumulate(ordered.end)
        start = ordered.start.copy()
        start[1:] = np.maximum(start[1:], until[:-1])
        return Intervals(start, ordered.end, ordered.kind).of(ordered.end > start)

    def without(self, kind: int, around: int) -> Intervals:
        """Without the intervals of a kind in which one of kind `around` begins: what is inside counts instead."""
        begun = np.sort(self.start[self.kind == around])
        holds = np.searchsorted(begun, self.end) > np.searchsorted(begun, self.start)
        return self.of(~(holds & (self.kind == kind)))

    def overlaid_with(self, other: Intervals, except_on: int) -> Intervals:
        """These intervals and others, both disjoint and sorted: the others take their time from these, except from the
        kind `except_on`, which keeps what they share."""
        cuts = distinct(np.concatenate([self.start, self.end, other.start, other.end]))
        begin, end = cuts[:-1], cuts[1:]
        mine, its = self._kind_at(begin), other._kind_at(begin)
        kind = np.where((its != NONE) & (mine != except_on), its, mine)
        return Intervals(begin, end, kind).of(kind != NONE)

    def _kind_at(self, times: Ints) -> Ints:
        """The kind of the interval around each moment, of disjoint and sorted ones; NONE outside."""
        return np.append(self.kind, NONE)[around(times, self.start, self.end)]


def phase_times(begin: Ints, end: Ints, outermost: Intervals, kinds: Sequence[int]) -> Ints:
    """Nanoseconds of each kind (a row each) in each step (a column each); a thing across a boundary counts in both."""
    times = np.zeros((len(kinds), len(begin)), np.int64)
    for row, kind in enumerate(kinds):
        its = outermost.of(outermost.kind == kind)
        times[row] = covered(end, its.start, its.end) - covered(begin, its.start, its.end)
    return times


def blocked(part: Partition, thread: int) -> tuple[Ints, Ints]:
    """When collectives blocked a thread: starts and ends, disjoint and sorted."""
    spans, operations = part.rows(SPANS), part.rows(COLLECTIVES)
    spans, operations = spans.of(spans["thread"] == thread), operations.of(operations["thread"] == thread)
    waits = spans.of(spans["flags"] & KIND_MASK == WAIT)
    start, end = operations["start_ns"], _ended(part, operations)
    issued = np.where(operations["issued_ns"] > 0, operations["issued_ns"], end)
    engine = spans.of(spans["flags"] & KIND_MASK == ENGINE)
    passes = united(engine["start_ns"], engine["end_ns"])
    of_ddp = np.isin(operations["source"], [id for id, text in part.log.strings.items() if text == _DDP])
    of_ddp &= ~np.isin(operations["group"], _on_devices(part))  # there it is a stream that waits
    at_once = (operations["flags"] & BLOCKING != 0) | (of_ddp & (around(start, *passes) == NONE))
    reducer = _of_reducer(start[of_ddp], issued[of_ddp], end[of_ddp], *passes)
    return united(
        np.concatenate([start, waits["start_ns"], reducer[0]]),
        np.concatenate([np.where(at_once, end, issued), waits["end_ns"], reducer[1]]),
    )


def under_way(part: Partition) -> tuple[Ints, Ints]:
    """From issue to end of operations on any thread, disjoint and sorted."""
    operations = part.rows(COLLECTIVES)
    return united(operations["start_ns"], _ended(part, operations))


def on_host(part: Partition) -> bool:
    """Whether the host's clock shows when each operation ran, as it does for these backends only."""
    return not _on_devices(part)


def _on_devices(part: Partition) -> list[int]:
    return [id for id, group in part.log.groups.items() if group.get("backend") not in _HOST]


def _ended(part: Partition, operations: Rows) -> Ints:
    done = operations["done_ns"]
    return np.where(done > 0, done, part.rank.now_ns)


def _of_reducer(start: Ints, issued: Ints, end: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """For each pass, the time from the last issue to the last end of DDP's operations, if the end comes later."""
    place = around(start, first, last)
    inside = place != NONE
    begin, until = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    np.maximum.at(begin, place[inside], issued[inside])
    np.maximum.at(until, place[inside], end[inside])
    until = np.minimum(until, last)
    waits = until > begin
    return begin[waits], until[waits]
