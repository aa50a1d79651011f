"""`--fail-if "step_time > 5%"`: a limit of one figure, and whether a comparison is beyond it for certain.

Invariant: pure; what chance may explain is not beyond a limit, and what is unknown is neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import SilentError, UsageError
from ...text import nearest
from ..change.report import Measure
from .report import Compared

_LIMIT = re.compile(r"\s*(.+?)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*(%|ms|s|MB)\s*")
_PARTS = {"ms": ("s", 1e-3), "s": ("s", 1.0), "MB": ("MB", 1.0)}  # of a limit -> the figure's unit, times
_EXAMPLE = 'For example: --fail-if "step_time > 5%"'


@dataclass(frozen=True)
class Limit:
    """text: as it was written; name: of the figure; is_more: whether the change may not be more than `most`, or not
    less; most: a share of the figure in A if `unit` is %, else in the figure's own unit."""

    text: str
    name: str
    is_more: bool
    most: float
    unit: str

    @classmethod
    def of(cls, text: str) -> Limit:
        """Raises UsageError."""
        match = _LIMIT.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is no limit.", _EXAMPLE)
        name, sign, most, unit = match.groups()
        return cls(text, name, sign == ">", float(most), unit)

    def is_exceeded(self, compared: Compared) -> bool:
        """Whether the whole interval of the change is beyond it.

        Raises UsageError if there is no such figure, or in another unit; SilentError if too few steps tell it.
        """
        measure = self._measure(compared)
        low, high = self._interval(measure)
        return low > self.most if self.is_more else high < self.most

    def _measure(self, compared: Compared) -> Measure:
        known = {each.name: each for each in reversed(compared.measures)}
        if self.name not in known:
            hint = nearest(self.name, known) or f"There are: {', '.join(sorted(known))}."
            raise UsageError(f"Nothing that both sides have is called {self.name!r}.", hint)
        return known[self.name]

    def _interval(self, measure: Measure) -> tuple[float, float]:
        ends = measure.ratio_low, measure.ratio_high
        if self.unit != "%":
            unit, times = _PARTS[self.unit]
            if unit != measure.unit:
                raise UsageError(f"{self.name} is not measured in {self.unit}: {self.text}.", _EXAMPLE)
            ends = measure.difference_low, measure.difference_high
        if ends[0] is None or ends[1] is None:
            raise SilentError(
                f"Whether {self.text} cannot be said: {measure.steps_before:,} steps of A tell it and "
                f"{measure.steps_after:,} of B.", "Compare longer stretches.", "few-steps",
            )  # fmt: skip
        if self.unit != "%":
            return ends[0] / times, ends[1] / times
        return 100 * (ends[0] - 1), 100 * (ends[1] - 1)
