"""The figures of two sides of runs, each as a contrast, or as a measure without interval where too few steps tell it.

Made by compare.py.  Invariant: pure but for the queries of the runs; what one side alone has is not contrasted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import TypeVar

import numpy as np

from ..change.blocks import LEAST_STEPS, Estimate, Values, estimates, rate_estimates
from ..change.report import Measure
from ..change.steps import filled
from .run import KINDS, Seen
from .statistics import LEVEL, Contrast, side

LEAST = 0.01  # of the step, or of the memory: less is of no use, and not told
_WAITING = 0.5  # of the time for which the training waits for a core: so much more runs differ on a busy host
_MOST = 40  # modules or collectives: each more makes the intervals of all wider
_NOTHING: Values = np.zeros(0)
Sides = tuple[list[Seen], list[Seen]]
Series = list[list[Values]]  # for each side, of each run
Each = TypeVar("Each")
Spread = Callable[[Seen, float], float]  # of a run whose mean is this, in its unit


@dataclass(frozen=True)
class Contrasts:
    """runs_differ: by how much of a step runs of one job differ, 0 for stretches of one run."""

    sides: Sides
    runs_differ: float

    def step(self, chosen: Series) -> Measure:
        seconds = self._chosen("duration", chosen)
        made = self._contrast("step_time", "s", estimates(_flat(seconds)), seconds, self._time_spread)
        return self.told(made, LEVEL)

    def samples(self, chosen: Series) -> Measure | None:
        """Samples per second over all ranks."""
        seconds, amounts = self._chosen("duration", chosen), self._chosen("samples", chosen)
        if any(np.isnan(each).any() for each in _flat(amounts)):
            return None
        rates = rate_estimates(list(zip(_flat(seconds), _flat(amounts), strict=True)))
        return self.told(self._contrast("throughput", "1/s", rates, seconds, self._rate_spread), LEVEL)

    def phases(self) -> list[Contrast | Measure]:
        known = [[run.phases() for run in runs] for runs in self.sides]
        return [self._figure(name, "s", known, self._time_spread) for name in known[0][0]]

    def parts(self, kind: str) -> list[Contrast | Measure]:
        """Of what both sides have, and what may make a difference that is worth telling."""
        means = [[run.parts[kind] for run in runs] for runs in self.sides]
        both = set.intersection(*(set().union(*runs) for runs in means))
        cost = {name: max(run.get(name, 0.0) for run in _flat(means)) for name in both}
        dear = [name for name in sorted(both, key=lambda name: -cost[name]) if cost[name] >= LEAST * self.step_s]
        series = [[run.series(kind, dear[:_MOST]) for run in runs] for runs in self.sides]
        return [self._figure(name, "s", series, self._time_spread) for name in dear[:_MOST]]

    def memory(self) -> list[Contrast | Measure]:
        known = [[run.memory() for run in runs] for runs in self.sides]
        names = dict.fromkeys(name for run in _flat(known) for name in run)
        return [self._figure(name, "MB", known, self._memory_spread) for name in names]

    def only(self, which: int) -> list[str]:
        """Modules and collectives that one side alone has."""
        names = [{name for run in runs for kind in KINDS for name in run.parts[kind]} for runs in self.sides]
        return sorted(names[which] - names[1 - which])

    def told(self, found: Contrast | Measure, level: float) -> Measure:
        if isinstance(found, Measure):
            return found
        return found.measure(level, LEAST * (self.step_s if found.unit == "s" else found.before.mean))

    @property
    def step_s(self) -> float:
        return float(np.mean([run.step_s for run in self.sides[0]]))

    def _figure(self, name: str, unit: str, known: list[list[dict[str, Values]]], spread: Spread) -> Contrast | Measure:
        series: Series = [[run.get(name, _NOTHING) for run in runs] for runs in known]
        if min(map(len, _flat(series))) < LEAST_STEPS:
            return Measure.unknown(name, unit, *(np.concatenate(runs) for runs in series))
        return self._contrast(name, unit, estimates(_flat(series)), series, spread)

    def _contrast(self, name: str, unit: str, of_runs: Sequence[Estimate], series: Series, spread: Spread) -> Contrast:
        spreads = [spread(run, each.mean) for run, each in zip(_flat(self.sides), of_runs, strict=True)]
        first = len(self.sides[0])
        old, new = side(of_runs[:first], spreads[:first]), side(of_runs[first:], spreads[first:])
        before, after = (sum(map(len, runs)) for runs in series)
        return Contrast(name, unit, old, new, (before, after))

    def _chosen(self, column: str, chosen: Series) -> Series:
        return [[filled(run.steps[column])[mine] for run, mine in zip(*each, strict=True)]
                for each in zip(self.sides, chosen, strict=True)]  # fmt: skip

    def _time_spread(self, run: Seen, seconds: float) -> float:
        """Parts of a step differ by so much that their variances add up to that of the step, however it is divided."""
        return self._of_step(run) * sqrt(max(seconds, 0.0) * run.step_s)

    def _rate_spread(self, run: Seen, rate: float) -> float:
        return self._of_step(run) * rate

    def _memory_spread(self, run: Seen, size: float) -> float:
        return self.runs_differ * size

    def _of_step(self, run: Seen) -> float:
        return hypot(self.runs_differ, _WAITING * run.waits)


def _flat(sides: Sequence[Sequence[Each]]) -> list[Each]:
    return [run for runs in sides for run in runs]
