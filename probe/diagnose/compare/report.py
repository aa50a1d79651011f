"""What differs between two sides, as data and in lines.

Made by compare.py.  Invariant: pure; a figure that was not measured is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..change.blocks import LEAST_STEPS
from ..change.report import Measure, digits
from ..figures import pct
from .settings import Setting

_SHOWN = 12  # differences; --json has all
_NAMES = 6  # in a line
_TITLE = {"s": (1e3, "ms"), "1/s": (1.0, "samples/s"), "MB": (1.0, "MB")}  # unit -> (times, as shown)


@dataclass(frozen=True)
class ComparedSide:
    """One side.  names: of its runs; ranks: of each; steps: compared, of all runs; left_out: while they settled; waits:
    share of the time, 0 to 1, in which the training waited for a core."""

    names: list[str]
    ranks: list[int]
    steps: int
    left_out: int
    waits: float


@dataclass(frozen=True)
class Found:
    """A finding of `why` in most runs of a side.  on: the sides that have it, A or B; unknown: those of which its rule
    cannot tell; before, after: its share of the step there, 0 to 1; None where it was not found, or has no share."""

    code: str
    on: tuple[str, ...]
    unknown: tuple[str, ...]
    before: float | None
    after: float | None
    sentence: str


@dataclass(frozen=True)
class Compared:
    """What differs between two sides: `probe.compare` returns it.

    step: seconds of a step, the mean over the ranks; samples: per second of all ranks, None if unknown; phases,
    modules, collectives: seconds of a step; memory: MB of the rank that holds most.  only_before, only_after: modules
    and collectives that one side alone has, which are not compared.  assumed: by how much runs of one job were assumed
    to differ, 0 to 1, None if that was measured or both sides are one run.

    Example: `[(each.name, each.difference) for each in probe.compare("4242@1..400", "4242@500..900").differing]`
    """

    before: ComparedSide
    after: ComparedSide
    step: Measure
    samples: Measure | None
    phases: list[Measure]
    modules: list[Measure]
    collectives: list[Measure]
    memory: list[Measure]
    only_before: list[str]
    only_after: list[str]
    findings: list[Found]
    settings: list[Setting]
    assumed: float | None
    notes: list[str] = field(default_factory=list)

    @property
    def measures(self) -> list[Measure]:
        """All of them, the step first."""
        rates = [] if self.samples is None else [self.samples]
        return [self.step, *rates, *self.details]

    @property
    def details(self) -> list[Measure]:
        """Phases, modules and collectives by what their difference costs, then memory."""
        times = [*self.phases, *self.modules, *self.collectives]
        return [*sorted(times, key=lambda each: -abs(each.difference or 0.0)), *self.memory]

    @property
    def differing(self) -> list[Measure]:
        """Those that differ by more than chance explains."""
        return [each for each in self.measures if each.differs]

    @property
    def sentence(self) -> str:
        """The verdict."""
        if self.step.differs:
            word = "slower" if (self.step.difference or 0.0) > 0 else "faster"
            return f"B is {word}: its step takes {_change(self.step)}."
        others = ", but not in all of its parts" if self.differing else ""
        return f"No difference in step time beyond chance{others}: {_change(self.step)}."

    def as_json(self) -> dict[str, Any]:
        """All fields, for json.dumps, with the verdict."""
        return {"verdict": self.sentence, "differs": [each.name for each in self.differing], **asdict(self)}

    def parts(self) -> dict[str, list[str]]:
        """Lines for a person, by the heading that they stand under."""
        parts = {
            "Verdict": [self.sentence],
            "Samples": [] if self.samples is None else [_change(self.samples)],
            "Differs": [f"{each.name}: {_cost(each)}" for each in self.details if each.differs][:_SHOWN],
            "Same": list(_same(self.details)),
            "Findings": [_finding(each) for each in self.findings],
            "Settings": [f"{each.name}: {each.before or '?'} -> {each.after or '?'}" for each in self.settings],
            "Only in A": [_some(self.only_before)] if self.only_before else [],
            "Only in B": [_some(self.only_after)] if self.only_after else [],
            "A": [_side(self.before)],
            "B": [_side(self.after)],
            "Note": [*self._assumption(), *self.notes],
        }
        return {heading: lines for heading, lines in parts.items() if lines}

    def _assumption(self) -> Iterable[str]:
        if self.assumed is not None:
            yield (
                f"That runs of one job differ by {pct(self.assumed)} is assumed: three runs a side would show it "
                "(--runs-differ says otherwise)."
            )


def _change(measure: Measure) -> str:
    """`12.0 -> 12.6 ms (+5.1 %, +3.2 % to +7.0 %)`."""
    if measure.ratio is None or measure.ratio_low is None or measure.ratio_high is None:
        return _cost(measure)
    ratio, low, high = (_percent(each) for each in (measure.ratio, measure.ratio_low, measure.ratio_high))
    return f"{_values(measure)} ({ratio}, {low} to {high})"


def _cost(measure: Measure) -> str:
    """`4.10 -> 4.71 ms (+0.610, +0.402 to +0.818)`."""
    if measure.difference is None or measure.difference_low is None or measure.difference_high is None:
        return _values(measure)
    times, _ = _TITLE[measure.unit]
    each = (measure.difference, measure.difference_low, measure.difference_high)
    difference, low, high = (f"{'+' * (value > 0)}{digits(times * value)}" for value in each)
    return f"{_values(measure)} ({difference}, {low} to {high})"


def _values(measure: Measure) -> str:
    times, unit = _TITLE[measure.unit]
    values = ("?" if each is None else digits(times * each) for each in (measure.before, measure.after))
    return f"{' -> '.join(values)} {unit}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %" if ratio < 3 else f"{ratio:.1f} times"


def _same(details: list[Measure]) -> Iterable[str]:
    shown = [each for each in details if each.before or each.after]
    if same := [each.name for each in shown if each.differs is False]:
        yield f"no difference beyond chance: {_some(same)}"
    few = [each for each in shown if each.differs is None]
    if few:
        counts = [f"{each.name} ({min(each.steps_before, each.steps_after)} of {LEAST_STEPS})" for each in few]
        yield f"known of too few steps: {_some(counts)}"


def _finding(found: Found) -> str:
    shares = [None if each is None else pct(each) for each in (found.before, found.after)]
    if len(found.on) == 2:
        both = " -> ".join(each or "?" for each in shares)
        return f"both have {found.code}{f': {both} of the step' if any(shares) else ''}"
    if found.unknown:
        return f"{found.on[0]} has {found.code}, {found.unknown[0]} does not tell: {found.sentence}"
    return f"only {found.on[0]} has {found.code}: {found.sentence}"


def _side(side: ComparedSide) -> str:
    runs = f"{len(side.names)} runs" if len(side.names) > 1 else "1 run"
    ranks = ", ".join(map(str, sorted(set(side.ranks))))
    left_out = f" ({side.left_out} left out to settle)" if side.left_out else ""
    return f"{_some(side.names)}: {runs}, {ranks} rank{'s' * (ranks != '1')}, {side.steps:,} steps{left_out}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
