"""A rank's steps: the step of a moment, the steps that may be shown, and when evals ran.

Made by Rank.timeline from the boundaries that the agent recorded; in a process that only calls modules, each outermost
call is a step.  Invariant: the same moment has the same step in every table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ..arrays.integers import Bools, Ints
from ..errors import ProbeError
from ..host.facts import Facts
from ..streams import (
    BLOCK,
    ENGINE,
    EVAL,
    EXTRA,
    FORWARD,
    KIND_MASK,
    OPTIMIZER,
    PACKING_NS,
    SAMPLED,
    SPANS,
    STEPS,
    WRITTEN,
)  # fmt: skip
from .call_steps import CALL, steps_of_calls
from .log import Log
from .rows import Rows

STUCK = 5  # a rank that has been in a step for this many typical steps shows that step
_ENOUGH = 30  # steps, to compare their mean
_RECENT_STEPS = 64  # their median is typical


@dataclass(frozen=True)
class StepEnds:
    """For each boundary: when its step is over, and whether the end of its optimizer's step was recorded."""

    time: Ints
    stepped: Bools


class AllRanks(Protocol):
    """The snapshot, as its ranks use it."""

    open_steps: bool

    @property
    def completed(self) -> int | None: ...

    def fetch(self, stream: str, oldest: bool = False) -> None: ...

    def ask(self, kind: str) -> Mapping[Any, Any]: ...

    def leave(self, rank: Any, error: ProbeError) -> None: ...


class OneRank(Protocol):
    """The rank, as far as its timeline depends on it."""

    facts: Facts
    log: Log
    now_ns: int
    snapshot: AllRanks


class Timeline:
    """step = number of steps the job had completed before; a boundary ends a step.

    rows: of each stream; base: the job's step of count 0; boundaries: the rows of STEPS by count, or what stands for
    them in a loop without an optimizer.
    """

    def __init__(self, rank: OneRank, rows_of: Callable[[str], Rows], base: int) -> None:
        self._rank, self._rows, self.base = rank, rows_of, base
        rows = rows_of(STEPS)
        self.incomplete = 1  # the step in which the attach fell
        self.boundaries = _by_count(rows) if len(rows) else self._calls(rows)
        self._ends: Ints = np.ascontiguousarray(self.boundaries["time_ns"])
        self._counts: Ints = np.ascontiguousarray(self.boundaries["count"])
        self._flags: Ints = np.ascontiguousarray(self.boundaries["flags"])

    def _calls(self, none: Rows) -> Rows:
        """What stands for boundaries where the agent says that nothing else ends a step."""
        if self._rank.facts.step_ends != CALL:
            return none
        self.incomplete = 0
        return steps_of_calls(self._rank.facts, self._rank.log, self._rank.now_ns, self._rows(SPANS), none)

    @cached_property
    def closings(self) -> StepEnds:
        """When each step is over; the time of its boundary if nothing more precise is known."""
        rows = self.boundaries
        if not len(rows) or not self.incomplete:
            return StepEnds(self._ends, np.ones(len(rows), np.bool_))
        return step_ends(self._ends, rows["thread"], self._rows(SPANS))

    @property
    def steps(self) -> bool:
        """Whether this rank has any steps."""
        return len(self._ends) > 0 or bool(self._rank.facts.anchor)

    def _index(self, times_ns: Ints) -> Ints:
        return np.searchsorted(self.closings.time, times_ns, side="right")

    def reaches(self, times_ns: Ints) -> Bools:
        """Whether the step of each moment is known: not so before the boundaries that are left."""
        return (times_ns >= self._ends[0]) if self._lost(STEPS) else np.ones(len(times_ns), np.bool_)

    def step(self, times_ns: Ints) -> Ints:
        """The job's step of each moment."""
        if not len(self._ends):
            return np.full(len(times_ns), self.base, np.int64)
        counts = np.append(self._counts, self._counts[-1] + 1)
        return self.base + counts[self._index(times_ns)]

    def counted(self, times_ns: Ints) -> Ints:
        """The step of each moment by the boundaries alone: inside an optimizer's step, it may be the next one."""
        if not len(self._counts):
            return np.full(len(times_ns), self.base, np.int64)
        counts = np.append(self._counts, self._counts[-1] + 1)
        return self.base + counts[np.searchsorted(self._ends, times_ns, side="right")]

    def since(self, times_ns: Ints) -> Ints:
        """When the step of each moment began; the beginning of time in the first."""
        begins = np.concatenate([[np.iinfo(np.int64).min], self.closings.time])
        return begins[self._index(times_ns)]

    def time_before(self, step: int, steps: int) -> int | None:
        """A moment that many steps before this step began; None if there is none, or if steps are mere calls."""
        place = int(np.searchsorted(self._counts, step - self.base - steps))
        return int(self._ends[place - 1]) if self.incomplete and place > 0 else None

    def flags(self, steps: Ints) -> Ints:
        """SAMPLED or BARE for each of these steps, 0 for neither; a step that has not ended counts as SAMPLED."""
        if not len(self._counts):
            return np.full(len(steps), SAMPLED)
        last = len(self._counts) - 1
        if int(self._counts[-1] - self._counts[0]) == last:
            place = np.clip(steps - (self.base + self._counts[0]), 0, last)
        else:
            place = np.minimum(np.searchsorted(self._counts, steps - self.base), last)
        return np.where(self._counts[place] == steps - self.base, self._flags[place], SAMPLED)

    @cached_property
    def unfinished(self) -> int:
        """The first step of a block of sampled steps that is not complete yet; the largest integer if there is none.

        The block stays hidden until it is complete: otherwise "the last ten steps" would be two or three.
        """
        far, last = np.iinfo(np.int64).max, self._rank.snapshot.completed
        sampling = self._rank.facts.sampling
        if sampling is None or sampling.every == 1 or last is None or self.stuck:
            return far
        latest = self.flags(np.arange(last - BLOCK + 1, last + 1)) & SAMPLED
        run = int(np.argmin(latest[::-1])) if not latest.all() else 0
        return last - run + 1 if run else far

    @property
    def unsampled(self) -> tuple[int, int]:
        """How many of the whole steps were not sampled, and how many whole steps there are."""
        whole = self._flags[self._counts >= self.incomplete]
        return int((whole & SAMPLED == 0).sum()), len(whole)

    @property
    def mean_ns(self) -> tuple[float, float, float]:
        """Of the steps in chosen blocks and of all steps, and the standard error of the first; NaN where too few."""
        ns, follows = np.diff(self._ends), (np.diff(self._counts) == 1) & (self._counts[:-1] >= self.incomplete)
        for start, end, _ in self.evals() if self._rank.log.evals else ():
            follows &= (end <= self._ends[:-1]) | (start >= self._ends[1:])
        chosen = ns[follows & (self._flags[1:] & (SAMPLED | EXTRA) == SAMPLED)]
        if len(chosen) < _ENOUGH:
            return np.nan, np.nan, np.nan
        return float(chosen.mean()), float(ns[follows].mean()), float(chosen.std() / np.sqrt(len(chosen)))

    @property
    def completed(self) -> int | None:
        """The last step this rank has completed; None if no whole one, or while step numbers may still change."""
        if not len(self._ends) or self._counts[-1] < self.incomplete:
            return None
        # the agent knows the source of the job's own step number some steps after the first
        return int(self.base + self._counts[-1]) if self._rank.facts.step_settled else None

    @property
    def running(self) -> int:
        """The step that runs now."""
        return int(self.base + self._counts[-1] + 1) if len(self._counts) else self.base

    @cached_property
    def stuck(self) -> bool:
        """Whether the rank has been in its open step for much longer than is typical."""
        usual = np.diff(self._ends[-_RECENT_STEPS:])
        if not len(usual):
            return False
        return bool(self._rank.now_ns - self._ends[-1] > STUCK * np.median(usual))

    def oldest(self, streams: tuple[str, ...]) -> int:
        """The first step whose rows in these streams are all still there."""
        first = self.base + max(self.incomplete, int(self._counts[0]) + 1 if self._lost(STEPS) else 0)
        for stream in streams:
            rows = self._rows(stream)
            if not self._lost(stream) or not len(rows):
                continue
            left = rows[WRITTEN[stream]][:1] + PACKING_NS
            first = max(first, int(self.step(left)[0]) + 1)
        return first

    def _lost(self, stream: str) -> bool:
        rows = self._rows(stream)
        return len(rows) > 0 and int(rows["seq"][0]) > 1

    def visible(self, steps: Ints, streams: tuple[str, ...] = ()) -> Bools:
        """Which of these steps may be shown: those that this rank has whole and every rank has completed."""
        snapshot = self._rank.snapshot
        if snapshot.open_steps:
            return np.ones(len(steps), np.bool_)
        whole: Bools = steps >= self.oldest(streams)
        if self.stuck:
            return whole
        if snapshot.completed is None:
            return np.zeros(len(steps), np.bool_)
        return whole & (steps <= snapshot.completed)

    def evals(self) -> list[tuple[int, int, int]]:
        """Start, end and thread of each eval."""
        spans = self._rows(SPANS)
        evals = spans.of((spans["flags"] & KIND_MASK) == EVAL)
        return list(zip(*(evals[slot].tolist() for slot in ("start_ns", "end_ns", "thread")), strict=True))

    def in_eval(self, times_ns: Ints, threads: Ints | None = None) -> Bools:
        """Whether an eval was running at that moment, on that thread or (None) on any."""
        found = np.zeros(len(times_ns), np.bool_)
        for start, end, thread in self.evals():
            inside = (times_ns >= start) & (times_ns < end)
            found |= inside if threads is None else inside & (threads == thread)
        return found


def _by_count(rows: Rows) -> Rows:
    count = rows["count"]
    in_order = bool((count[1:] >= count[:-1]).all())
    return rows if in_order else rows.of(np.argsort(count, kind="stable"))


def step_ends(ends: Ints, threads: Ints, spans: Rows) -> StepEnds:
    """When steps are over: when their optimizers are done, a little later than their boundaries.

    A boundary is recorded inside the anchor optimizer's step; another optimizer that steps after it, with no model call
    and no backward in between, belongs to the same step.  The ends are in order, each between its own boundary and the
    next one.  ends, threads: the time and thread of each boundary, in order.
    """
    kind = spans["flags"] & KIND_MASK
    rows = np.flatnonzero(kind == OPTIMIZER)
    start, end, thread = (spans[slot][rows] for slot in ("start_ns", "end_ns", "thread"))
    first = np.searchsorted(ends, start, side="right")
    last = np.searchsorted(ends, end, side="right") - 1
    around = last >= first
    late = ~around & (last >= 0)
    if late.any():
        # in a step that is not sampled, calls are not recorded, but backward is
        calls = np.sort(spans["start_ns"][(kind == FORWARD) | (kind == ENGINE)])
        late[late] = np.searchsorted(calls, start[late]) == np.searchsorted(calls, ends[last[late]])
    mine = (around | late) & (threads[last] == thread)
    closed = ends.copy()
    np.maximum.at(closed, last[mine], end[mine])
    stepped = np.zeros(len(ends), np.bool_)
    stepped[last[mine & around]] = True
    return StepEnds(closed, stepped)
