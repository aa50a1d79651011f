"""Samples of one source as the machine tables need them: a row per moment, with levels and rates.

Called by the tables of samples.  Invariant: a rate is over the true time between two readings of the same
counter, however far apart; without an earlier reading, or after the counter fell, there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.arrow import nullable
from ..arrays.integers import Bools, Ints, distinct
from ..schema import Columns
from ..streams import SAMPLES
from .partition import Partition


@dataclass(frozen=True)
class Values:
    """A number for each row, and which rows have one."""

    numbers: Any
    valid: Bools

    def __mul__(self, factor: float) -> Values:
        return Values(self.numbers * factor, self.valid)

    def __add__(self, other: Values) -> Values:
        return Values(self.numbers + other.numbers, self.valid & other.valid)

    def share(self, whole: Values) -> Values:
        """The share of `whole`, in percent."""
        valid = self.valid & whole.valid & (whole.numbers > 0)
        part = self.numbers / np.where(valid, whole.numbers, 1)
        return Values(100 * np.clip(part, 0, 1), valid)

    def rest(self) -> Values:
        """What is left of 100 percent."""
        return Values(100 - self.numbers, self.valid)

    def arrow(self) -> Any:
        return nullable(self.numbers, self.valid)


class Samples:
    """The readings of one source; times: of its rows, ascending."""

    def __init__(self, part: Partition, source: int) -> None:
        rows = part.rows(SAMPLES)
        own = rows["source"] == source
        self._time, self._counter, self._value = rows["time_ns"][own], rows["counter"][own], rows["value"][own]
        self.times: Ints = distinct(self._time)
        cut = len(rows) > 0 and int(rows["seq"][0]) > 1 and bool(own[0])
        if cut:  # the ring may have overwritten a part of what was read at that moment
            self.times = self.times[1:]

    def level(self, counter: int) -> Values:
        """What was read."""
        return self._placed(*self._readings(counter))

    def growth(self, counter: int) -> Values:
        """Its growth since the reading before."""
        time, value = self._readings(counter)
        grown = np.diff(value)
        return self._placed(time[1:][grown >= 0], grown[grown >= 0])

    def rate(self, counter: int) -> Values:
        """Growth a second."""
        time, value = self._readings(counter)
        grown, took = np.diff(value), np.diff(time)
        rose = (grown >= 0) & (took > 0)
        return self._placed(time[1:][rose], grown[rose] / took[rose] * 1e9)

    def _readings(self, counter: int) -> tuple[Ints, Ints]:
        of = self._counter == counter
        return self._time[of], self._value[of]

    def _placed(self, time: Ints, numbers: Any) -> Values:
        """A value for each row, from numbers read at some of the rows' moments."""
        shown = np.isin(time, self.times)
        place = np.searchsorted(self.times, time[shown])
        filled, valid = np.zeros(len(self.times), numbers.dtype), np.zeros(len(self.times), np.bool_)
        filled[place], valid[place] = numbers[shown], True
        return Values(filled, valid)


def common(part: Partition, times: Ints) -> Columns:
    """The common columns.  A sample describes the machine, not a step: it is visible at once, whatever the steps do."""
    in_eval = part.timeline.in_eval(times) if part.log.evals else np.zeros(len(times), np.bool_)  # else no spans needed
    return {"start_ns": times, "step": part.timeline.step(times), "in_eval": in_eval}
