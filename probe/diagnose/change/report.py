"""What a change brought, as data and in lines.

Made by change.py.  Invariant: pure; a figure that was not measured is None.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .blocks import LEAST_STEPS, Comparison, Values

_CODE = 60  # characters of a snippet in a line


@dataclass(frozen=True)
class Measure:
    """One figure before and after, in `unit` (s a step, 1/s or MB); steps: of how many; the ends of intervals of the
    difference, after - before, and the ratio, after / before, and their level; differs: whether chance hardly explains
    the difference.  None where too few steps are known."""

    name: str
    unit: str
    steps_before: int
    steps_after: int
    before: float | None = None
    after: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    differs: bool | None = None
    level: float = 0.95

    @classmethod
    def of(cls, name: str, unit: str, steps: tuple[int, int], compared: Comparison) -> Measure:
        return cls(name, unit, *steps, **asdict(compared), differs=compared.differs)

    @classmethod
    def unknown(cls, name: str, unit: str, before: Values, after: Values) -> Measure:
        """With what is known of either side, and no interval."""
        old, new = (float(np.mean(each)) if len(each) else None for each in (before, after))
        return cls(name, unit, len(before), len(after), old, new)


@dataclass(frozen=True)
class Change:
    """What the last change brought: `Connection.since_change()` returns it.

    at_step: at which it was made; code: the snippet, "" if --at named a step without one; changed: what it changed;
    loaders: those with whose next epoch it took effect, at effect_step; from_step: the first step that counts as
    after; settling: steps left out at the start of either side, since each took over twice the median; steps_before,
    steps_after: how many were compared; step, median: duration of a step; samples: per second, of all ranks.

    Example: `[(each.name, each.difference) for each in job.since_change().phases if each.differs]`
    """

    at_step: int
    code: str
    changed: list[str]
    loaders: list[str]
    effect_step: int
    from_step: int
    settling: tuple[int, int]
    steps_before: int
    steps_after: int
    step: Measure
    median: Measure
    samples: Measure | None
    phases: list[Measure]
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For a terminal: a word, then what it is about."""
        shown = [
            ("Change", self._what()),
            ("Step", f"{_values(self.step)} ms, {_speed(self.step)}"),
            ("Median", f"{_values(self.median)} ms, {_speed(self.median)}"),
            ("Samples", "" if self.samples is None else f"{_values(self.samples, 1)} per second"),
            ("Phases", _phases(self.phases)),
            ("From", f"{self.steps_before:,} steps before, {self.steps_after:,} after{self._without()}"),
            *(("Note", note) for note in self.notes),
        ]
        return [f"{word:<10}{text}" for word, text in shown if text]

    def as_json(self) -> dict[str, Any]:
        """All fields, for json.dumps."""
        return asdict(self)

    def _what(self) -> str:
        first, *more = self.code.strip().splitlines() or [""]
        cut = first if len(first) <= _CODE and not more else f"{first[: _CODE - 4]} ..."
        epoch = f"   (in effect from step {self.effect_step:,}, the next epoch)" if self.loaders else ""
        return f"step {self.at_step:,}{f': {cut}' if cut else ''}{epoch}"

    def _without(self) -> str:
        left_out = [f"{count} {word}" for count, word in zip(self.settling, ("before", "after"), strict=True) if count]
        return f" (left out to settle: {', '.join(left_out)})" if left_out else ""


def digits(value: float) -> str:
    """Three significant digits: `80.6`, `1,240`, `0.0123`."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def _values(measure: Measure, times: float = 1e3) -> str:
    return " -> ".join("?" if each is None else digits(times * each) for each in (measure.before, measure.after))


def _speed(measure: Measure) -> str:
    """`3.65 times as fast (3.52 to 3.77)`."""
    ratio, low, high = measure.ratio or 1.0, measure.ratio_low or 1.0, measure.ratio_high or 1.0
    as_fast = f"{1 / high:.2f} to {1 / low:.2f}"
    if not measure.differs:
        return f"no difference beyond chance ({as_fast} times as fast)"
    if ratio < 1:
        return f"{1 / ratio:.2f} times as fast ({as_fast})"
    return f"{ratio:.2f} times as long ({low:.2f} to {high:.2f})"


def _phases(measures: list[Measure]) -> str:
    """`data 61.2 -> 2.1 ms (-59.1, -61 to -57); no difference: forward; known of too few steps: other (10 of 40)`."""
    shown = [each for each in measures if each.before or each.after]
    same = [each.name for each in shown if each.differs is False]
    few = [each for each in shown if each.differs is None]
    told = [_difference(each) for each in shown if each.differs]
    told += [f"no difference: {', '.join(same)}"] if same else []
    counts = (f"{each.name} ({min(each.steps_before, each.steps_after)} of {LEAST_STEPS})" for each in few)
    return "; ".join([*told, *([f"known of too few steps: {', '.join(counts)}"] if few else [])])


def _difference(measure: Measure) -> str:
    each = (measure.difference or 0.0, measure.difference_low or 0.0, measure.difference_high or 0.0)
    difference, low, high = (digits(1e3 * value) for value in each)
    return f"{measure.name} {_values(measure)} ms ({'+' * (each[0] > 0)}{difference}, {low} to {high})"
