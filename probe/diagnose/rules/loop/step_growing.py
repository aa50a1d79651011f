"""Steps that take longer and longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ....errors import SilentError
from ...figures import figure, ms, pct
from ...places import EXPLAINS, Place, places
from ...rule import Finding, Rule, Severity
from ...watched import Watched

LEAST = 0.2  # of the step, over all that was recorded: a machine that becomes warm or busy changes it by less
_PARTS, _LEAST_PARTS, _ROWS = 12, 8, 2  # in which the record is divided; the fewest; rows of each
_SURE = 3.5  # standard errors of Kendall's rank correlation: once in four thousand series without a trend
_CONTENDED_PCT = 5.0  # of the time waiting for a core: then the step's own time on cores tells, not the clock's
_HOUR_S, _DAY_S = 3600.0, 86400.0
_WARM = 20  # steps in which caches fill
_PLACE = 0.05  # of the time: a function whose share grows by less is not what grows
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
            "The record is too short to tell whether steps grow.",
            f"Watch for longer: probe {watched.endpoint} why --seconds 60", "few-steps",
        )  # fmt: skip
    contended = max(part["waits"] or 0.0 for part in parts) > _CONTENDED_PCT
    steps = np.array([part["step"] for part in parts])
    series = [np.array([part[name] for part in parts]) for name in (("cpu_s",) if contended else ("step_s", "cpu_s"))]
    grown = min(_growth(steps, each) for each in series)
    if grown >= LEAST and grown > 2 * (watched.rows(_SAMPLES)[0]["grown"] or 0.0):
        yield _finding(watched, steps, grown)


def _growth(steps: Any, values: Any) -> float:
    """By which part of its mean a series grows over these steps; 0 where it is not sure that it does, all the time."""
    count, slope = len(values), _slope(steps, values)
    order = np.sign(values[None, :] - values[:, None])[np.triu_indices(count, 1)].sum()
    sure = order >= _SURE * np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return float(slope * (steps[-1] - steps[0]) / values.mean()) if sure else 0.0


def _slope(steps: Any, values: Any) -> float:
    """The median of the slopes between any two of them, which a few outliers do not change."""
    before, after = np.triu_indices(len(values), 1)
    return float(np.median((values[after] - values[before]) / (steps[after] - steps[before])))


def _finding(watched: Watched, steps: Any, grown: float) -> Finding:
    first, last, step_s, place = float(steps[0]), float(steps[-1]), watched.step_s, _what_grows(watched)
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


def _what_grows(watched: Watched) -> Place | None:
    """The function whose share of the time grows most, from the first half of the watch to the second."""
    if watched.why_not_profiled:
        return None
    everything = places(watched)
    middle = float(np.median([stack.step for stack in everything.stacks])) if everything.stacks else 0.0
    early = everything.where(lambda stack: stack.step < middle)
    late = everything.where(lambda stack: stack.step >= middle)
    gains = [(late.share(place.is_at) - early.share(place.is_at), place) for place in everything.functions()]
    most = max((gain for gain, _ in gains), default=0.0)
    return next((place for gain, place in reversed(gains) if gain >= EXPLAINS * most), None) if most > _PLACE else None


STEP_GROWING: Rule[Watched] = Rule(
    "step-growing",
    "Each step takes longer than the one before.",
    _find,
    needs=("host.process_trace", "python.step_trace", "python.profile"),
    of=("python-outside-model", "compute-bound", "input-bound"),
    sql=_SQL,
)
