"""Ratios of interleaved pairs, with the bootstrap interval that docs/benchmarks.md quotes."""

from __future__ import annotations

import random
from statistics import median


def ratio_interval(pairs: list[tuple[float, float]], draws: int = 10_000) -> tuple[float, float, float]:
    """(median of with / without, lower and upper bound of its 95 % bootstrap interval)."""
    ratios = [with_us / without for with_us, without in pairs]
    chance = random.Random(0)
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(draws))
    return median(ratios), medians[int(0.025 * draws)], medians[int(0.975 * draws)]
