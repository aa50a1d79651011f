"""In which phase of its step a thread was at a moment, as step_trace divides steps.

Called by the tables python.profile, python.phase_trace and python.step_trace.  Invariant: a phase that is not known is
none; only threads that end steps have any.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.arrow import coded
from ..arrays.integers import NONE, Ints, distinct
from ..host.facts import Facts
from ..protocol import NO_GROUP, NO_LOADERS
from ..streams import EVAL, SAMPLED
from .blocking import Blocking
from .partition import Partition
from .phases import PHASES, Intervals, done_by

_OTHER = -2
_NAMES = {kind: name for name, kind in PHASES.items()} | {_OTHER: "other"}


def phases_at(part: Partition, times_ns: Ints, threads: Ints) -> Any:
    """The names of the phases; outside of all of them "other", if the step's batches and module calls were recorded."""
    rows, blocking = part.timeline.boundaries, Blocking(part)
    recorded = part.timeline.base + rows["count"][rows["flags"] & SAMPLED != 0]
    if {"data", "forward"} & unrecorded(part.rank.facts):
        recorded = recorded[:0]
    found: Ints = np.full(len(times_ns), NONE)
    for thread in distinct(rows["thread"]).tolist():
        mine = np.flatnonzero(threads == thread)
        found[mine] = phases_of(part, blocking, thread).kind_at(times_ns[mine])
        known = np.isin(part.timeline.step(times_ns[mine]), recorded)
        found[mine[known & (found[mine] == NONE)]] = _OTHER
    return coded(found, _NAMES)


def phases_of(part: Partition, blocking: Blocking, thread: int) -> Intervals:
    """When a thread was in which phase, disjoint and sorted."""
    return done_by(part, thread).overlaid_with(blocking.of(thread), except_on=EVAL)


def unrecorded(facts: Facts) -> set[str]:
    """The phases of which a rank's taps may have missed some; where there can be none, nothing is missed.

    When a tap failed is not known, so it counts as off all the time.
    """
    taps = facts.taps
    calls = taps.get("forward", "").startswith("on")
    known = {
        "data": taps.get("loader") in ("on", NO_LOADERS),
        "forward": calls,
        "validation": calls,
        "comm": taps.get("collectives") in ("on", NO_GROUP),
    }
    return {phase for phase, is_known in known.items() if not is_known}
