"""Ratios of interleaved pairs, with the bootstrap interval that docs/benchmarks.md quotes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

LEVEL = 0.95
DRAWS = 10_000


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


def ratio_interval(pairs: Sequence[tuple[float, float]], draws: int = DRAWS) -> Interval:
    """Of with / without."""
    return interval([with_it / without for with_it, without in pairs], draws)


def mixed_interval(pairs: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]], every: int) -> Interval:
    """Of with / without where one step in `every` is as in `pairs`, the rest as in `others`."""
    chance = random.Random(0)
    ratios, rest = ([with_it / without for with_it, without in each] for each in (pairs, others))

    def mixed(one: Sequence[float], other: Sequence[float]) -> float:
        return median(one) / every + median(other) * (1 - 1 / every)

    drawn = [mixed(chance.choices(ratios, k=len(ratios)), chance.choices(rest, k=len(rest))) for _ in range(DRAWS)]
    return Interval(mixed(ratios, rest), *_bounds(drawn), len(ratios))


def difference_interval(pairs: Sequence[tuple[float, float]], draws: int = DRAWS) -> Interval:
    """Of with - without, in their unit."""
    return interval([with_it - without for with_it, without in pairs], draws)


def interval(values: Sequence[float], draws: int = DRAWS, of: Callable[[Sequence[float]], float] = median) -> Interval:
    """The same values give the same interval: the draws' seed is fixed."""
    chance = random.Random(0)
    drawn = [of(chance.choices(values, k=len(values))) for _ in range(draws)]
    return Interval(of(values), *_bounds(drawn), len(values))


def _bounds(drawn: list[float]) -> tuple[float, float]:
    outside = (1 - LEVEL) / 2 * len(drawn)
    return sorted(drawn)[int(outside)], sorted(drawn)[int(len(drawn) - outside)]
