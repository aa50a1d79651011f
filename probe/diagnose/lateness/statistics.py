"""Which ranks are late, by how much, and how sure that is.

Called by stragglers.py.  Lateness is a rank's own work per step minus the median of the others.  Invariant:
pure; no rank is called late if chance could explain it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erfc, sqrt
from typing import Any

import numpy as np

TOLERATED = 0.02  # of a step: a rank may be late by this much in the median step
SLIGHT = 0.01  # of a step: less than this counts as chance in any step
CONFIDENT = 0.95
Seconds = Any  # numpy array of floats, NaN where unknown: one row per rank, one column per step


@dataclass(frozen=True)
class Lateness:
    """late_s: in the median step, negative if the rank waits for others; steps: those in which it was more than
    slightly late; confidence: that it is late in general, not by chance in these steps."""

    rank: int
    late_s: float
    late_pct: float  # of the step
    steps: int
    confidence: float

    @property
    def is_late(self) -> bool:
        return self.confidence >= CONFIDENT and self.late_pct > 100 * TOLERATED


def lateness(ranks: Sequence[int], own: Seconds, step_s: float) -> list[Lateness]:
    """The latest first.  own: each rank's own work in each step."""
    more = excess(own)
    later = (more > SLIGHT * step_s).sum(axis=1)
    found = []
    for rank, one, late_s, steps in zip(ranks, more, np.median(more, axis=1).tolist(), later.tolist(), strict=True):
        confidence = 1 - min(1.0, len(ranks) * by_chance(one - SLIGHT * step_s))
        found.append(Lateness(rank, late_s, 100 * late_s / step_s, steps, confidence))
    return sorted(found, key=lambda each: -each.late_s)


def excess(seconds: Seconds) -> Seconds:
    """Each rank's value minus the median of the others."""
    return np.stack([one - np.median(np.delete(seconds, place, 0), axis=0) for place, one in enumerate(seconds)])


def above_others(values: Mapping[int, float], rank: int) -> float:
    """A rank's value minus the median of the others; 0 if there is nothing to compare."""
    others = [value for other, value in values.items() if other != rank]
    return values.get(rank, 0.0) - float(np.median(others)) if others else 0.0


def by_chance(values: Seconds) -> float:
    """How likely it is that values around 0 lie so far above it: Wilcoxon's signed-rank test, robust to outliers."""
    count = len(values)
    order = np.argsort(np.argsort(np.abs(values))) + 1
    above, usual = order[values > 0].sum(), count * (count + 1) / 4
    return 0.5 * erfc((above - usual) / sqrt(usual * (2 * count + 1) / 6) / sqrt(2))
