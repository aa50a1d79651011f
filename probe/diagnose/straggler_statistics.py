"""Which ranks are late, by how much, and how sure that is.

Called by probe.diagnose.stragglers.  A rank is late by what it does longer than the others (the median of them) before
it comes to what they wait for together.  Invariant: pure; nobody is named for what could be chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, sqrt
from typing import Any

import numpy as np

TOLERATED = 0.02  # of a step: what a rank may be late by in the median step
SLIGHT = 0.01  # of a step: by what it may be late in any, and it is chance
CONFIDENT = 0.95
Seconds = Any  # numpy array of floats, NaN where not known: a row a rank, a column a step


@dataclass(frozen=True)
class Lateness:
    """late_s: in the median step, negative for who waits for others; steps: in which it was more than slightly late;
    confidence: that it is so in general, and not by chance in these."""

    rank: int
    late_s: float
    late_pct: float  # of the step
    steps: int
    confidence: float

    @property
    def is_late(self) -> bool:
        return self.confidence >= CONFIDENT and self.late_pct > 100 * TOLERATED


def lateness(ranks: Sequence[int], own: Seconds, step_s: float) -> list[Lateness]:
    """The latest first.  own: what each rank did itself in each step."""
    more = excess(own)
    later = (more > SLIGHT * step_s).sum(axis=1)
    found = []
    for rank, one, late_s, steps in zip(ranks, more, np.median(more, axis=1).tolist(), later.tolist(), strict=True):
        confidence = 1 - min(1.0, len(ranks) * by_chance(one - SLIGHT * step_s))
        found.append(Lateness(rank, late_s, 100 * late_s / step_s, steps, confidence))
    return sorted(found, key=lambda each: -each.late_s)


def excess(seconds: Seconds) -> Seconds:
    """By how much each rank has more than the median of the others."""
    return np.stack([one - np.median(np.delete(seconds, place, 0), axis=0) for place, one in enumerate(seconds)])


def by_chance(values: Seconds) -> float:
    """How likely values around 0 are so far above it: Wilcoxon's signed-rank test, which no outlier sways."""
    count = len(values)
    order = np.argsort(np.argsort(np.abs(values))) + 1
    above, usual = order[values > 0].sum(), count * (count + 1) / 4
    return 0.5 * erfc((above - usual) / sqrt(usual * (2 * count + 1) / 6) / sqrt(2))
