"""Ratios of interleaved pairs, with the bootstrap interval that docs/benchmarks.md quotes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A median and the bounds of its bootstrap interval."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def ratio_interval(pairs: Sequence[tuple[float, float]], draws: int = 10_000) -> Interval:
    """Of with / without."""
    return interval([with_it / without for with_it, without in pairs], draws)


def difference_interval(pairs: Sequence[tuple[float, float]], draws: int = 10_000) -> Interval:
    """Of with - without, in their unit."""
    return interval([with_it - without for with_it, without in pairs], draws)


def interval(values: Sequence[float], draws: int = 10_000, of: Callable[[Sequence[float]], float] = median) -> Interval:
    """The same values give the same interval: the draws' seed is fixed."""
    chance = random.Random(0)
    drawn = sorted(of(chance.choices(values, k=len(values))) for _ in range(draws))
    outside = (1 - LEVEL) / 2
    return Interval(of(values), drawn[int(outside * draws)], drawn[int((1 - outside) * draws)], len(values))
