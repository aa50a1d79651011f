"""Steps that take longer and longer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....errors import SilentError
from ...figures import figure, ms, pct, us
from ...measures.places import EXPLAINS, Place, places
from ...rule import Finding, Rule, Severity
from ...watched import Watched

LEAST = 0.2  # of the step, over all that was recorded: a machine that becomes warm or busy changes it by less
_PARTS, _LEAST_PARTS, _ROWS = 12, 8, 2  # in which the record is divided; the fewest; rows of each
_SETTLES = 4  # the first of so many parts of the record is left out if steps surely grow only after it
_SLICES = 20  # of the profile, with some hundred samples each
_SURE = 3.5  # standard errors of Kendall's rank correlation: once in four thousand series without a trend
_CONTENDED_PCT = 5.0  # of the time waiting for a core: then the step's own time on cores tells, not the clock's
_HOUR_S, _DAY_S = 3600.0, 86400.0
_WARM = 20  # steps in which caches fill
_PLACE = 0.1  # of the time: a function that takes less is not what grows
_SQL = (  # place: how far the job was at that second, in steps
    "WITH rows AS (SELECT process.rank, process.start_ns, cpu_pct, core_wait_pct, "
    "steps.step + LEAST(1, (process.start_ns - steps.start_ns) / 1e9 / duration) AS place "
    "FROM host.process_trace AS process ASOF JOIN python.step_trace AS steps "
    "ON process.rank = steps.rank AND process.start_ns >= steps.start_ns), "
    "moves AS (SELECT place, cpu_pct, core_wait_pct, place - LAG(place) OVER own AS steps, "
    "(start_ns - LAG(start_ns) OVER own) / 1e9 AS seconds FROM rows "
    "WINDOW own AS (PARTITION BY rank ORDER BY start_ns)), "
    f"parts AS (SELECT *, NTILE({_PARTS}) OVER (ORDER BY place) AS part FROM moves "
    f"WHERE steps IS NOT NULL AND place > {_WARM}) "
    "SELECT AVG(place) AS step, COUNT(*) AS rows, SUM(seconds) / NULLIF(SUM(steps), 0) AS step_s, "
    "SUM(cpu_pct * seconds) / NULLIF(SUM(steps), 0) / 100 AS cpu_s, AVG(core_wait_pct) AS waits FROM parts "
    "GROUP BY part ORDER BY part"
)
_SAMPLES = (
    "SELECT REGR_SLOPE(samples, step) * (MAX(step) - MIN(step)) / AVG(samples) AS grown FROM python.step_trace "
    "WHERE {window} AND samples IS NOT NULL"
)


def _find(watched: Watched) -> Iterator[Finding]:
    parts = [part for part in watched.rows(_SQL) if part["cpu_s"] is not None]
    if len(parts) < _LEAST_PARTS or parts[0]["rows"] < _ROWS:
        raise SilentError(
            "The record is too short: whether steps grow is unknown.",
            f"Watch for longer: probe {watched.endpoint} why --seconds 60", "few-steps",
        )  # fmt: skip
    contended = max(part["waits"] or 0.0 for part in parts) > _CONTENDED_PCT
    names = ("cpu_s",) if contended else ("step_s", "cpu_s")
    trends = [_least(parts[since:], names) for since in (0, len(parts) // _SETTLES)]
    trend, of_function = next((each for each in trends if each.is_sure), trends[0]), _what_grows(watched)
    least = max(LEAST, 2 * (watched.rows(_SAMPLES)[0]["grown"] or 0.0))
    if not trend.is_sure:  # the machine may hide it, but not what a function takes of the step
        if of_function is None and trend.grown > least:
            more = f"Watch for longer: probe {watched.endpoint} why --seconds 60"
            raise SilentError("Whether steps grow is not certain yet.", more, "undecided")
        if of_function is None or trend.grown < LEAST / 2:
            return
        trend = of_function[1]
    if trend.grown > least:
        yield _finding(watched, trend, of_function[0] if of_function else None)


class _Trend(NamedTuple):
    """step_s: the mean over these steps; grown: by which part of it they grow from the first to the last; is_sure: all
    the time, and not by chance."""

    steps: Any
    step_s: float
    grown: float
    is_sure: bool

    @property
    def slope_s(self) -> float:
        """By how much one takes longer than the one before."""
        return self.grown * self.step_s / float(self.steps[-1] - self.steps[0])

    def at(self, step: float) -> float:
        """How long this one takes."""
        return self.step_s + self.slope_s * (step - float(self.steps.mean()))


def _least(parts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> _Trend:
    """By the one of these series that grows least, sure if all are."""
    steps = np.array([part["step"] for part in parts])
    trends = [_trend(steps, np.array([part[name] for part in parts])) for name in names]
    step_s = float(np.mean([part["step_s"] for part in parts]))
    return _Trend(steps, step_s, min(grown for grown, _ in trends), all(is_sure for _, is_sure in trends))


def _trend(steps: Any, values: Any) -> tuple[float, bool]:
    """By which part of their mean they grow, and whether that is sure: by the median of the slopes between any two of
    them, which a few outliers do not change."""
    count, (before, after) = len(values), np.triu_indices(len(values), 1)
    differences, apart = values[after] - values[before], steps[after] - steps[before]
    moved = apart > 0  # else the job stood
    slope = np.median(differences[moved] / apart[moved]) if moved.any() else 0.0
    is_sure = np.sign(differences).sum() >= _SURE * np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return float(slope * (steps[-1] - steps[0]) / values.mean()), bool(is_sure)


def _what_grows(watched: Watched) -> tuple[Place, _Trend] | None:
    """The function whose time grows beside that of the others, whatever the machine does to all of them, and what that
    adds to the steps watched."""
    everything = places(watched) if not watched.why_not_profiled else None
    if everything is None or not everything.stacks:
        return None
    steps, seconds = (np.array([getattr(stack, name) for stack in everything.stacks]) for name in ("step", "seconds"))
    edges = np.unique(np.quantile(steps, np.linspace(0, 1, _SLICES + 1)[1:-1]))
    part = np.searchsorted(edges, steps, side="right")
    found: list[tuple[Place, _Trend]] = []
    for place in everything.functions() if len(edges) >= _LEAST_PARTS else ():
        inside = np.array([stack.has(place.is_at) for stack in everything.stacks])
        its, others = (np.bincount(part, seconds * mask, len(edges) + 1) for mask in (inside, ~inside))
        if place.share >= _PLACE and others.min() > 0:
            slices = np.bincount(part, steps) / np.bincount(part)
            grown, is_sure = _trend(slices, its / others)
            found += [(place, _Trend(slices, watched.step_s, grown * place.share, is_sure))] * is_sure
    most = max((trend.grown for _, trend in found), default=0.0)
    return next((each for each in reversed(found) if each[1].grown >= EXPLAINS * most), None)


def _finding(watched: Watched, trend: _Trend, place: Place | None) -> Finding:
    first, last, step_s = float(trend.steps[0]), float(trend.steps[-1]), watched.step_s
    doubles_s = step_s / trend.slope_s * step_s
    share = place.share if place else _come(watched, trend)  # what grows costs all that it takes
    return Finding(
        f"Step-growing: a step takes {us(trend.slope_s)} longer than the one before, "
        f"{ms(trend.at(first))} at step {first:.0f}, {ms(trend.at(last))} at step {last:.0f}.",
        why=[f"at this rate a step takes twice as long in {_ago(doubles_s)}"],
        remedy=f"Look for what {place.function if place else 'the job'} keeps and goes through in each step.",
        seconds=share * step_s, share=share, severity=_severity(doubles_s),
        where=f"{place}, {pct(place.share)} of the time and growing" if place else "",
        saves=max(0.0, step_s - trend.at(first)) or None, assumes=f"if each took as long as step {first:.0f}",
    )  # fmt: skip


def _come(watched: Watched, trend: _Trend) -> float:
    """Of the steps watched, what has come since the first one of the trend."""
    first, last = float(trend.steps[0]), float(trend.steps[-1])
    middle = (max(first, watched.first) + min(last, watched.last)) / 2
    return min(1.0, max(0.0, trend.slope_s * (middle - first) / watched.step_s))


def _severity(doubles_s: float) -> Severity:
    return "critical" if doubles_s < _HOUR_S else "warning" if doubles_s < _DAY_S else "hint"


def _ago(seconds: float) -> str:
    return f"{figure(seconds)} s" if seconds < 120 else f"{figure(seconds / 60)} min"


STEP_GROWING: Rule[Watched] = Rule(
    "step-growing",
    "Each step takes longer than the one before.",
    _find,
    needs=("host.process_trace", "python.step_trace", "python.profile"),
    of=("python-outside-model", "compute-bound"),
    sql=_SQL,
)
