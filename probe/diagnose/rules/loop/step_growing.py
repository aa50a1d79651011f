"""Steps that take longer and longer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....errors import SilentError
from ...figures import figure, ms, pct
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
    place, by_function = _what_grows(watched)
    steps, grown, is_sure = next((trend for trend in trends if trend.is_sure), trends[0])
    least = max(LEAST, 2 * (watched.rows(_SAMPLES)[0]["grown"] or 0.0))
    if not is_sure:  # the machine may hide it, but not what a function takes of the step
        if place is None and grown > least:
            more = f"Watch for longer: probe {watched.endpoint} why --seconds 60"
            raise SilentError("Whether steps grow is not certain yet.", more, "undecided")
        grown = by_function if grown >= LEAST / 2 else 0.0
    if grown > least:
        yield _finding(watched, steps, grown, place)


class _Trend(NamedTuple):
    """grown: by which part of its mean a series grows over these steps; is_sure: all the time, and not by chance."""

    steps: Any
    grown: float
    is_sure: bool


def _least(parts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> _Trend:
    """Of these series the one that grows least, sure if all are."""
    steps = np.array([part["step"] for part in parts])
    trends = [_trend(steps, np.array([part[name] for part in parts])) for name in names]
    return _Trend(steps, min(each.grown for each in trends), all(each.is_sure for each in trends))


def _trend(steps: Any, values: Any) -> _Trend:
    """By the median of the slopes between any two of them, which a few outliers do not change."""
    count, (before, after) = len(values), np.triu_indices(len(values), 1)
    differences, apart = values[after] - values[before], steps[after] - steps[before]
    moved = apart > 0  # else the job stood
    slope = np.median(differences[moved] / apart[moved]) if moved.any() else 0.0
    is_sure = np.sign(differences).sum() >= _SURE * np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return _Trend(steps, float(slope * (steps[-1] - steps[0]) / values.mean()), bool(is_sure))


def _what_grows(watched: Watched) -> tuple[Place | None, float]:
    """The function whose time grows beside that of the others, whatever the machine does to all of them, and by which
    part of the step."""
    everything = places(watched) if not watched.why_not_profiled else None
    if everything is None or not everything.stacks:
        return None, 0.0
    steps, seconds = (np.array([getattr(stack, name) for stack in everything.stacks]) for name in ("step", "seconds"))
    edges = np.unique(np.quantile(steps, np.linspace(0, 1, _SLICES + 1)[1:-1]))
    part = np.searchsorted(edges, steps, side="right")
    found: list[tuple[float, Place]] = []
    for place in everything.functions() if len(edges) >= _LEAST_PARTS else ():
        inside = np.array([stack.has(place.is_at) for stack in everything.stacks])
        its, others = (np.bincount(part, seconds * mask, len(edges) + 1) for mask in (inside, ~inside))
        if place.share >= _PLACE and others.min() > 0:
            trend = _trend(np.bincount(part, steps) / np.bincount(part), its / others)
            found += [(trend.grown * place.share, place)] * trend.is_sure
    most = max((grown for grown, _ in found), default=0.0)
    return next(((place, grown) for grown, place in reversed(found) if grown >= EXPLAINS * most), (None, 0.0))


def _finding(watched: Watched, steps: Any, grown: float, place: Place | None) -> Finding:
    first, last, step_s = float(steps[0]), float(steps[-1]), watched.step_s
    slope_s = grown * step_s / (last - first)
    doubles_s = step_s / slope_s * step_s
    # What grows costs all that it takes; where that is not known, what has come since the first step.
    share = place.share if place else min(1.0, slope_s * (first + last) / 2 / step_s)
    return Finding(
        f"Step-growing: a step takes {figure(1e6 * slope_s)} µs longer than the one before, "
        f"{ms(step_s * (1 - grown / 2))} at step {first:.0f}, {ms(step_s * (1 + grown / 2))} at step {last:.0f}.",
        why=[f"at this rate a step takes twice as long in {_ago(doubles_s)}"],
        remedy=f"Look for what {place.function if place else 'the job'} keeps and goes through in each step.",
        seconds=share * step_s, share=share, severity=_severity(doubles_s),
        where=f"{place}, {pct(place.share)} of the time and growing" if place else "",
    )  # fmt: skip


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
