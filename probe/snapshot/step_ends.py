"""When a step is over: its optimizers are, which is a little later than its boundary.

Called by the timeline.  A boundary is noted inside the anchor optimizer's step, and another optimizer that steps
after it, with no call of a model and no backward in between, ends the same step.  Invariant: the ends of steps are
in order, each between its own boundary and the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays.dtypes import Bools, Ints
from ..streams import ENGINE, FORWARD, KIND_MASK, OPTIMIZER
from .rows import Rows


@dataclass(frozen=True)
class StepEnds:
    """Of each boundary: when its step is over, and whether the optimizer that noted it is known to have ended."""

    time: Ints
    stepped: Bools


def step_ends(ends: Ints, threads: Ints, spans: Rows) -> StepEnds:
    """ends, threads: time and thread of each boundary, in order."""
    kind = spans["flags"] & KIND_MASK
    rows = np.flatnonzero(kind == OPTIMIZER)
    start, end, thread = (spans[slot][rows] for slot in ("start_ns", "end_ns", "thread"))
    first = np.searchsorted(ends, start, side="right")
    last = np.searchsorted(ends, end, side="right") - 1
    around = last >= first
    late = ~around & (last >= 0)
    if late.any():
        # in a step that is not sampled the calls are not seen, but its backward is
        calls = np.sort(spans["start_ns"][(kind == FORWARD) | (kind == ENGINE)])
        late[late] = np.searchsorted(calls, start[late]) == np.searchsorted(calls, ends[last[late]])
    mine = (around | late) & (threads[last] == thread)
    closed = ends.copy()
    np.maximum.at(closed, last[mine], end[mine])
    stepped = np.zeros(len(ends), np.bool_)
    stepped[last[mine & around]] = True
    return StepEnds(closed, stepped)
