"""Whether two stretches of steps differ, and by how much: 95 % intervals by a bootstrap over blocks of steps.

Called by change.py; estimates() by compare/, which joins runs.  Steps resemble those before them, so blocks are drawn
and not steps; the more alike steps are, the longer the blocks.  Three things would make an interval too narrow, and
each is corrected: draws vary around the mean of the sample; what a block shares with its neighbours is lost; a few
blocks say little of how much they vary (Student's t).  Invariant: pure, and the same numbers give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log10, sqrt
from typing import Any

import numpy as np

LEAST_LENGTH = 10  # steps in a block: sampling, too, goes by ten
LEAST_BLOCKS = 4  # on each side
LEAST_STEPS = LEAST_BLOCKS * LEAST_LENGTH
_DRAWS, _DRAWS_OF_MEDIANS = 2000, 500  # a median is sorted for
_Z = 1.959964  # of 95 %
_ENDS = 0.025, 0.975
_MOST_SHARED = 0.6  # of a block's variance: corrected for up to here, since what is shared is an estimate, too
_CLEARLY = 2.0  # standard errors, of a correlation that is not chance; Politis and White (2004)
_PERIODIC, _HARMONIC = 0.5, 0.9  # a correlation of periods, and how near the first peak comes to those after it
_ROUNDING = 1e-9  # of a value, which sums of floats leave even where nothing varies
_IN_A_ROW = 5  # lags without one, after which steps are not alike
Values = Any  # numpy array of floats, one per step, in order
Side = tuple[Values, Values]  # (what tells how alike steps are, what is compared)
Statistic = Callable[["_Draws", Values], tuple[Any, Any]]  # of what is compared: (of the sample, of each draw)


@dataclass(frozen=True)
class Comparison:
    """difference: after - before; ratio: after / before, None unless both are positive; low and high: the ends of the
    95 % interval of either."""

    before: float
    after: float
    difference: float
    difference_low: float
    difference_high: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None

    @property
    def differs(self) -> bool:
        """Whether chance hardly explains the difference: no interval holds what would be none."""
        by_ratio = self.ratio_low is None or self.ratio_high is None or not self.ratio_low <= 1 <= self.ratio_high
        is_more = abs(self.difference) > _ROUNDING * abs(self.before)
        return is_more and by_ratio and not self.difference_low <= 0 <= self.difference_high


def means(before: Values, after: Values) -> Comparison:
    """Of the means; each side has LEAST_STEPS or more.  Cost: 10 ms for 1,000 steps a side."""
    return _compared((before, before), (after, after), lambda draws, of: (of.mean(), draws.sums(of) / len(of)))


def medians(before: Values, after: Values) -> Comparison:
    """Of the medians.  Cost: 30 ms for 1,000 steps a side."""
    return _compared((before, before), (after, after), lambda draws, of: (np.median(of), draws.medians(of)))


def rates(before: Side, after: Side) -> Comparison:
    """Of amounts per second; a side is the seconds and the amount of each step."""
    return _compared(
        before, after, lambda draws, of: (of.sum() / draws.steps.sum(), draws.sums(of) / draws.sums(draws.steps))
    )


@dataclass(frozen=True)
class Estimate:
    """A mean, or a rate, of one run.  variance: of it, as far as the steps of this run show that; blocks: of steps."""

    mean: float
    variance: float
    blocks: float


def estimates(runs: Sequence[Values]) -> list[Estimate]:
    """Of the mean of each run of LEAST_STEPS or more; how alike steps are, all runs tell together.

    The variance is that of all blocks, what endless draws of a bootstrap would have.  Cost: 1 ms for 1,000 steps.
    """
    alike = _correlations(runs)
    return [_estimate(run, *_memory(alike, len(run))) for run in runs]


def rate_estimates(runs: Sequence[Side]) -> list[Estimate]:
    """Of the rate of each run, by its linearization."""
    rates = [float(amounts.sum() / seconds.sum()) for seconds, amounts in runs]
    off = [(amounts - rate * seconds) / seconds.mean() for rate, (seconds, amounts) in zip(rates, runs, strict=True)]
    return [replace(each, mean=rate) for each, rate in zip(estimates(off), rates, strict=True)]


def _estimate(run: Values, length: int, shared: float) -> Estimate:
    blocks = len(run) / length
    until = np.concatenate(([0.0], np.cumsum(np.concatenate((run, run[: length - 1])))))
    variance = ((until[length:] - until[:-length]) / length).var() / blocks
    return Estimate(float(run.mean()), float(variance * _stretch(blocks, shared) ** 2), blocks)


def _stretch(blocks: float, shared: float) -> float:
    """By this, blocks that are drawn vary too little."""
    return sqrt(blocks / (blocks - 1) / (1 - shared))


class _Draws:
    """Draws of blocks from one side's steps, each as long as the side; blocks go round from its end to its start."""

    def __init__(self, steps: Values, correlations: Values, chance: Any) -> None:
        self.steps, count = steps, len(steps)
        self.length, shared = _memory(correlations, count)
        self.blocks = count / self.length
        self.stretch = _stretch(self.blocks, shared)
        self._starts = chance.integers(0, count, (_DRAWS, ceil(self.blocks)))
        self._last = count - self.length * (ceil(self.blocks) - 1)  # steps of the last block

    def sums(self, values: Values) -> Values:
        """For each draw, over the values of its steps."""
        until = np.concatenate(([0.0], np.cumsum(np.concatenate((values, values)))))
        whole, last = (until[size : size + len(values)] - until[: len(values)] for size in (self.length, self._last))
        return whole[self._starts[:, :-1]].sum(axis=1) + last[self._starts[:, -1]]

    def medians(self, values: Values) -> Values:
        """For each draw, of the values of its steps."""
        count = len(values)
        places = self._starts[:_DRAWS_OF_MEDIANS, :, None] + np.arange(self.length)
        places = places.reshape(len(places), -1)[:, :count]
        return np.median(values[places % count], axis=1)


def _compared(before: Side, after: Side, statistic: Statistic) -> Comparison:
    chance, alike = np.random.default_rng(0), _correlations([before[0], after[0]])
    sides = [_Draws(steps, alike, chance) for steps, _ in (before, after)]
    (old, old_drawn), (new, new_drawn) = (
        statistic(draws, of) for draws, (_, of) in zip(sides, (before, after), strict=True)
    )
    wider = _student(_freedom(sides, (old_drawn, new_drawn))) / _Z

    def ends(old_off: Values, new_off: Values) -> Any:
        return wider * np.quantile(sides[1].stretch * new_off - sides[0].stretch * old_off, _ENDS)

    low, high = (new - old + ends(old_drawn - old, new_drawn - new)).tolist()
    found = float(old), float(new), float(new - old), low, high
    if not (old > 0 and new > 0):
        return Comparison(*found, None, None, None)
    logs = (np.log(np.maximum(drawn / value, 1e-3)) for drawn, value in ((old_drawn, old), (new_drawn, new)))
    return Comparison(*found, float(new / old), *(new / old * np.exp(ends(*logs))).tolist())


def _freedom(sides: list[_Draws], drawn: tuple[Values, Values]) -> float:
    """Welch's degrees of freedom of a difference: those of the side that varies more count for more."""
    variances = [(side.stretch * each.std()) ** 2 for side, each in zip(sides, drawn, strict=True)]
    parts = sum(variance**2 / (side.blocks - 1) for variance, side in zip(variances, sides, strict=True))
    return float(sum(variances) ** 2 / parts) if parts else float("inf")


def _student(freedom: float) -> float:
    """Student's t for 95 %, by its expansion (Abramowitz and Stegun 26.7.5); within 1 % from 3 degrees on."""
    z = _Z
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _correlations(sides: Sequence[Values]) -> Values:
    """How alike steps are by their distance from 0 on, up to a third of the shortest side; of all sides together, as
    one side of 100 steps tells too little."""
    lags = min(map(len, sides)) // 3
    total = np.zeros(lags)
    for side in sides:
        centred = side - side.mean()
        if (variance := float(centred @ centred)) > 0:
            power = np.abs(np.fft.rfft(centred, 2 * len(side))) ** 2
            total += np.fft.irfft(power)[:lags] / variance * len(side)
    return total / sum(map(len, sides))


def _memory(correlations: Values, count: int) -> tuple[int, float]:
    """(length of a block, share of its variance that it shares with its neighbours) of a side of `count` steps.

    The length by Politis and White (2004), half as long again since few steps hide how alike they are.  Only positive
    correlations count: those that periods leave between their peaks would make blocks endless, and without them
    intervals are wider.  Where long steps come at one distance, each block has as many of them as any other."""
    alike = correlations > _CLEARLY * sqrt(log10(count) / count)
    last = next((lag for lag in range(1, len(alike)) if not alike[lag : lag + _IN_A_ROW].any()), len(alike)) - 1
    reach = max(_reach(correlations, count, last), _reach_of_one_lag(float(correlations[1]), count)) if last else 0.0
    length = min(max(LEAST_LENGTH, ceil(1.5 * (1.5 * reach**2 * count) ** (1 / 3))), count // LEAST_BLOCKS)
    period = _period(correlations, count)
    whole = period * ceil(length / period)
    length = whole if whole <= count // LEAST_BLOCKS else length
    return length, min(reach / length, _MOST_SHARED)


def _period(correlations: Values, count: int) -> int:
    """The distance of long steps, such as checkpoints and starts of epochs; 1 if there is none."""
    lags = np.arange(LEAST_LENGTH, min(count // LEAST_BLOCKS + 1, len(correlations)))
    peaks = correlations[lags] * count / (count - lags)
    most = peaks.max(initial=0.0)
    return int(lags[np.argmax(peaks > _HARMONIC * most)]) if most > _PERIODIC else 1


def _reach(correlations: Values, count: int, last: int) -> float:
    """How many steps away, on average, lies what a step is like: the correlations by distance over their sum."""
    lags = np.arange(1, min(2 * last + 1, len(correlations)))
    weights = np.clip(2 - lags / last, 0, 1)  # a flat top, then down to 0
    # subtracting the sample's mean took its variance, total / count, from each correlation
    total = (1 + 2 * weights @ correlations[lags]) / max(0.1, 1 - (1 + 2 * weights.sum()) / count)
    return float(2 * (weights * lags) @ (correlations[lags] + total / count) / total)


def _reach_of_one_lag(correlation: float, count: int) -> float:
    """The same if each step were like the one before and no other; samples show too little of it (Kendall 1954)."""
    phi = min((correlation + 1 / count) / (1 - 3 / count), 1 - 1 / sqrt(count))
    return 2 * phi / (1 - phi**2)
