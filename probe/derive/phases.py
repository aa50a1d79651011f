"""Where a step's time went: the outermost things that its thread did.

Called by step_trace and phase_trace.  Spans of one thread are nested or disjoint; where they are not (coroutines), the
one that began first has the time that they share.  Invariant: every interval was measured, and phases never exceed
their step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays.integers import NONE, Arrays, Bools, Ints, distinct, find
from ..arrays.nesting import around, covered
from ..snapshot.rows import Rows
from ..streams import ENGINE, EVAL, EVAL_MODE, FORWARD, GRAPH, KIND_MASK, LOADS, NO_GRAD, OPTIMIZER, SPANS, WAIT
from .partition import Partition

LOAD, VALIDATION = 0, 1 << 8  # beside the kinds of spans
PHASES = {
    "data": LOAD, "forward": FORWARD, "backward": ENGINE, "validation": VALIDATION, "optimizer": OPTIMIZER,
    "comm": WAIT, "eval": EVAL,
}  # fmt: skip


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

    def joined(self) -> Intervals:
        """Disjoint and sorted ones, those as one that follow each other without a gap and are of one kind."""
        first = np.append(True, (self.start[1:] > self.end[:-1]) | (self.kind[1:] != self.kind[:-1]))[: len(self.start)]
        return Intervals(self.start[first], self.end[np.append(first[1:], True)[: len(first)]], self.kind[first])

    def cut_at(self, times: Ints) -> Intervals:
        """These intervals in pieces, none of which has one of these rising moments in it."""
        first = np.searchsorted(times, self.start, side="right")
        pieces = np.searchsorted(times, self.end) - first + 1
        of = np.repeat(np.arange(len(pieces)), pieces)
        last = np.cumsum(pieces)[of] - 1
        cut = np.append(times, 0)[first[of] + np.arange(len(of)) - last + pieces[of] - 1]  # where each piece ends
        end = np.where(np.arange(len(of)) == last, self.end[of], cut)
        begins = np.append(True, of[1:] != of[:-1])[: len(of)]
        return Intervals(np.where(begins, self.start[of], np.roll(end, 1)), end, self.kind[of])

    def without(self, kinds: Sequence[int], around: int) -> Intervals:
        """Without the intervals of these kinds in which one of kind `around` begins: what is inside counts instead."""
        begun = np.sort(self.start[self.kind == around])
        holds = np.searchsorted(begun, self.end) > np.searchsorted(begun, self.start)
        return self.of(~(holds & np.isin(self.kind, kinds)))

    def overlaid_with(self, other: Intervals, except_on: int | None = None) -> Intervals:
        """These intervals and others, both disjoint and sorted: the others take their time from these, except from the
        kind `except_on`, which keeps what they share."""
        cuts = distinct(np.concatenate([self.start, self.end, other.start, other.end]))
        begin, end = cuts[:-1], cuts[1:]
        mine, its = self.kind_at(begin), other.kind_at(begin)
        takes = its != NONE if except_on is None else (its != NONE) & (mine != except_on)
        kind = np.where(takes, its, mine)
        return Intervals(begin, end, kind).of(kind != NONE)

    def kind_at(self, times: Ints) -> Ints:
        """The kind of the interval around each moment, of disjoint and sorted ones; NONE outside."""
        return np.append(self.kind, NONE)[around(times, self.start, self.end)]


def phase_times(begin: Ints, end: Ints, outermost: Intervals, kinds: Sequence[int]) -> Ints:
    """Nanoseconds of each kind (a row each) in each step (a column each); a thing across a boundary counts in both."""
    times = np.zeros((len(kinds), len(begin)), np.int64)
    for row, kind in enumerate(kinds):
        its = outermost.of(outermost.kind == kind)
        times[row] = covered(end, its.start, its.end) - covered(begin, its.start, its.end)
    return times


def done_by(part: Partition, thread: int) -> Intervals:
    """The outermost things that a thread did.

    A call that steps an optimizer is a whole step, not a forward; what an optimizer's closure does is not the
    optimizer's.  A graph may hold any phase, or several, so a replay is what is around it.
    """
    spans, loads = part.rows(SPANS), part.rows(LOADS)
    kind = np.where(validations(part, spans), VALIDATION, spans["flags"] & KIND_MASK)
    mine = (spans["thread"] == thread) & (kind != WAIT) & (kind != GRAPH)
    spans, kind, loads = spans.of(mine), kind[mine], loads.of(loads["thread"] == thread)
    start, end = (np.concatenate([spans[slot], loads[slot]]) for slot in ("start_ns", "end_ns"))
    kind = np.concatenate([kind, np.full(len(loads), LOAD)])
    things = Intervals(start, end, kind).without((FORWARD, VALIDATION), around=OPTIMIZER)
    steps = things.kind == OPTIMIZER
    return things.of(steps).outermost().overlaid_with(things.of(~steps).outermost())


def validations(part: Partition, spans: Rows) -> Bools:
    """Calls that train nothing: without gradients, or in eval mode, of a module that trains in the same step."""
    flags = spans["flags"]
    calls = flags & KIND_MASK == FORWARD
    in_eval_mode = flags & EVAL_MODE != 0
    result: Bools = calls & (flags & NO_GRAD != 0)
    trains, doubtful = calls & ~in_eval_mode, calls & in_eval_mode & ~result
    if trains.any() and doubtful.any():
        result |= doubtful & _of_modules_in(part, spans, trains)
    return result


def _of_modules_in(part: Partition, spans: Rows, chosen: Bools) -> Bools:
    """Spans whose module has a chosen one in the same step; in an open step, where that may be yet to come, in any."""
    subject, step = spans["subject"], part.timeline.step(spans["start_ns"])
    in_step = subject * (np.ptp(step) + 1) + step
    is_open = step >= part.timeline.running
    result: Bools = (find(in_step, distinct(in_step[chosen])) != NONE) | (
        is_open & (find(subject, distinct(subject[chosen])) != NONE)
    )
    return result
