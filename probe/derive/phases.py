"""Where a step's time went: the outermost things that its thread did, one after another.

Called by step_trace.  Spans of one thread are nested or disjoint; where they are not (coroutines), the one that
began first has the time that they share.  Waiting for collectives takes its time from the phase around it.
Invariant: no phase is negative, and phases never exceed their step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays.distinct import distinct
from ..arrays.dtypes import Bools, Ints
from ..arrays.nesting import NONE
from .backward import covered


@dataclass(frozen=True)
class Intervals:
    """Things with a beginning and an end, each of a kind, in any order."""

    start: Ints
    end: Ints
    kind: Ints

    def of(self, chosen: Ints | Bools) -> Intervals:
        return Intervals(self.start[chosen], self.end[chosen], self.kind[chosen])

    def outermost(self) -> Intervals:
        """Those inside no other one, by start and disjoint."""
        ordered = self.of(np.lexsort((-self.end, self.start)))
        until = np.maximum.accumulate(ordered.end)
        start = ordered.start.copy()
        start[1:] = np.maximum(start[1:], until[:-1])
        return Intervals(start, ordered.end, ordered.kind).of(ordered.end > start)

    def without(self, kind: int, around: int) -> Intervals:
        """Without those of a kind in which one of kind `around` begins: what is inside them counts instead."""
        begun = np.sort(self.start[self.kind == around])
        holds = np.searchsorted(begun, self.end) > np.searchsorted(begun, self.start)
        return self.of(~(holds & (self.kind == kind)))

    def give_way(self, other: Intervals, but: int) -> Intervals:
        """Both kinds of intervals, each disjoint and sorted: `other` takes its time from these, except from kind `but`,
        which keeps what they share.
        """
        cuts = distinct(np.concatenate([self.start, self.end, other.start, other.end]))
        begin, end = cuts[:-1], cuts[1:]
        mine, its = _kind_at(begin, self), _kind_at(begin, other)
        kind = np.where((its != NONE) & (mine != but), its, mine)
        return Intervals(begin, end, kind).of(kind != NONE)


def _kind_at(times: Ints, intervals: Intervals) -> Ints:
    """The kind of the interval around each moment, of disjoint and sorted ones; NONE outside."""
    if not len(intervals.start):
        return np.full(len(times), NONE, np.int64)
    place = np.searchsorted(intervals.start, times, side="right") - 1
    around = (place >= 0) & (times < intervals.end[place])
    return np.where(around, intervals.kind[place], NONE)


def phase_times(begin: Ints, end: Ints, outermost: Intervals, kinds: Sequence[int]) -> Ints:
    """Nanoseconds of each kind (a row each) in each step (a column each); a thing across a boundary counts in both."""
    times = np.zeros((len(kinds), len(begin)), np.int64)
    for row, kind in enumerate(kinds):
        its = outermost.of(outermost.kind == kind)
        times[row] = covered(end, its.start, its.end) - covered(begin, its.start, its.end)
    return times
