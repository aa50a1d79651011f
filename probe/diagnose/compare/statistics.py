"""Two sides of runs: intervals of what differs, and how many comparisons may be believed at once.

Called by compare.py, on what blocks.py estimates for each run.  Runs of the same job differ by more than steps of one
run show: memory lies elsewhere, the host has other work.  From three runs a side on, their spread is measured; before
that it is assumed.  Invariant: pure; a run counts as one value, however many steps it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erfc, exp, expm1, inf, log, log1p, sqrt
from statistics import NormalDist

import numpy as np

from ..change.blocks import Estimate
from ..change.report import Measure

LEVEL = 0.95  # of the step time's interval
_FALSE = 0.01  # share of the parts that are told though chance explains them: few, beside one step time
LEAST_RUNS = 3  # on a side, to measure how much they differ
_ROUNDING = 1e-9  # of a value, which sums of floats leave even where nothing varies
_MOST_LOG = 50.0  # of how wide the interval of a ratio is
_MOST_FREEDOM = 1e6  # as good as endless


@dataclass(frozen=True)
class Side:
    """The mean over the runs of a side.  variance: of it, all causes together; freedom: how well that is known."""

    mean: float
    variance: float
    freedom: float


@dataclass(frozen=True)
class Contrast:
    """One figure of both sides; counts: of how many steps."""

    name: str
    unit: str
    before: Side
    after: Side
    counts: tuple[int, int]

    @property
    def difference(self) -> float:
        return self.after.mean - self.before.mean

    @property
    def p(self) -> float:
        """How often chance alone would make a difference like that; by difference or ratio, whatever is more often."""
        if not self._error:
            return float(abs(self.difference) <= _ROUNDING * abs(self.before.mean))
        surest = abs(self.difference) / self._error
        if self._has_ratio:
            surest = min(surest, abs(log(self.after.mean / self.before.mean)) / self._log_error)
        return erfc(_normal(surest, self._freedom) / sqrt(2))

    def measure(self, level: float, least: float) -> Measure:
        """With intervals of that level; it differs if they say so and it is by `least` or more."""
        wide = _student(level, self._freedom)
        found = Measure(
            self.name, self.unit, *self.counts, self.before.mean, self.after.mean, self.difference,
            self.difference - wide * self._error, self.difference + wide * self._error,
            differs=self.p <= 1 - level and abs(self.difference) >= least, level=level,
        )  # fmt: skip
        if not self._has_ratio:
            return found
        ratio, factor = self.after.mean / self.before.mean, exp(min(_MOST_LOG, wide * self._log_error))
        return replace(found, ratio=ratio, ratio_low=ratio / factor, ratio_high=ratio * factor)

    @property
    def _has_ratio(self) -> bool:
        return self.before.mean > 0 and self.after.mean > 0

    @property
    def _error(self) -> float:
        return sqrt(self.before.variance + self.after.variance)

    @property
    def _log_error(self) -> float:
        return sqrt(sum(side.variance / side.mean**2 for side in (self.before, self.after)))

    @property
    def _freedom(self) -> float:
        return _welch([(side.variance, side.freedom) for side in (self.before, self.after)])


def side(runs: Sequence[Estimate], spreads: Sequence[float]) -> Side:
    """spreads: by how much (a standard deviation, in the unit) another run like each would differ from it."""
    count = len(runs)
    mean = float(np.mean([run.mean for run in runs]))
    if count >= LEAST_RUNS:
        return Side(mean, float(np.var([run.mean for run in runs], ddof=1)) / count, count - 1)
    parts = [(run.variance / count**2, run.blocks - 1) for run in runs]
    parts += [(spread**2 / count**2, inf) for spread in spreads]
    return Side(mean, sum(variance for variance, _ in parts), _welch(parts))


def believed(chances: Sequence[float]) -> float:
    """The level of intervals with which those that exclude no difference may be believed together.

    At most 1 % of those told are chance: Benjamini and Hochberg (1995), whose intervals are as much wider (Benjamini
    and Yekutieli 2005).  chances: p of every comparison made.
    """
    count = len(chances)
    told = max((place for place, p in enumerate(sorted(chances), 1) if p <= _FALSE * place / count), default=1)
    return 1 - _FALSE * told / max(count, 1)


def _welch(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances: those of the larger ones count for more."""
    total, known = sum(variance for variance, _ in parts), sum(variance**2 / freedom for variance, freedom in parts)
    return min(_MOST_FREEDOM, total**2 / known) if known else _MOST_FREEDOM


def _student(level: float, freedom: float) -> float:
    """Student's t for two sides of that level; the reverse of _normal."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    return sqrt(freedom * expm1((z * _bend(freedom)) ** 2 / freedom))


def _normal(t: float, freedom: float) -> float:
    """The normal deviate that is as rare as a t: Wallace (1959), within 0.02 from 3 degrees on."""
    return sqrt(freedom * log1p(t**2 / freedom)) / _bend(freedom)


def _bend(freedom: float) -> float:
    return (8 * freedom + 3) / (8 * freedom + 1)
