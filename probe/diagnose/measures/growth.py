"""Whether something grows steadily up to now, and how fast.

Called by the rule on memory.  Invariant: pure; what rises once, jumps, or is about to level off does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST = 12  # values
_PARTS = 4  # from each of which to the next it must rise
_EVEN = 0.6  # of the slope of the first half: so steep the second one must be; a cache that fills, or a warm-up, is not
_MOST = 200  # values are compared with each other


@dataclass(frozen=True)
class Growth:
    """a_step: by how much in each step; whole: over the steps for which it has grown; first, last: those."""

    a_step: float
    whole: float
    first: int
    last: int


def growth(steps: Any, values: Any) -> Growth | None:
    """Of values at these steps, in their order; of the longest stretch up to the last one for which they have grown."""
    steps, values = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    for part in (1, 2, 4):  # the whole, else the last half, else the last quarter
        since = steps[-1] - (steps[-1] - steps[0]) / part if len(steps) else 0.0
        chosen = steps >= since
        if chosen.sum() >= LEAST and _is_steady(steps[chosen], values[chosen]):
            slope = _slope(steps[chosen], values[chosen])
            return Growth(slope, slope * float(steps[-1] - since), int(since), int(steps[-1]))
    return None


def _is_steady(steps: Any, values: Any) -> bool:
    """Whether it rises from each part of the time to the next, and as fast at the end as at the beginning."""
    parts = np.split(values, np.searchsorted(steps, np.linspace(steps[0], steps[-1], _PARTS + 1)[1:-1]))
    if min(map(len, parts)) < LEAST // _PARTS - 1 or np.diff([np.median(part) for part in parts]).min() <= 0:
        return False
    early = steps <= (steps[0] + steps[-1]) / 2
    return _slope(steps[~early], values[~early]) >= _EVEN * _slope(steps[early], values[early])


def _slope(steps: Any, values: Any) -> float:
    """The median slope between two of the values (Theil and Sen): outliers do not matter."""
    thin = slice(None, None, max(1, len(steps) // _MOST))
    steps, values = steps[thin], values[thin]
    first, second = np.triu_indices(len(steps), 1)
    apart = steps[second] - steps[first]
    return float(np.median((values[second] - values[first])[apart > 0] / apart[apart > 0]))
