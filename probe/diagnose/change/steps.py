"""The steps of one run as columns: how long each took, its phases, and which of them can be compared.

Called by change.py, and by compare/ for runs.  A step's time is the mean over its ranks.  Invariant: no step counts in
which an eval held the job, nor one that a rank has not ended; what is unknown is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..figures import pct
from ..rule import Tables
from .blocks import LEAST_STEPS, Values

PHASES = "data", "forward", "backward", "validation", "optimizer", "comm", "other"
Steps = dict[str, Values]  # columns, in the order of steps
_SETTLES = 2.0  # times the median
_UNLIKE = 0.1  # difference in the share of sampled steps, which cost a little more
_RANKS = "CASE WHEN COUNT({0}) = COUNT(*) THEN {1}({0})::DOUBLE END AS {2}"
_COLUMNS = ", ".join((
    "step, COUNT(*) AS ranks, AVG(duration) AS duration, BOOL_AND(sampled)::INTEGER AS sampled",
    _RANKS.format("samples", "SUM", "samples"),
    _RANKS.format("rss_mb", "MAX", "rss_mb"),
    *(_RANKS.format(f"{phase}_duration", "AVG", phase) for phase in PHASES if phase != "other"),
    # in an unsampled step, calls of modules are in it, too
    _RANKS.format("CASE WHEN sampled THEN other_duration END", "AVG", "other"),
))  # fmt: skip


def steps_of(tables: Tables, first: int, last: int) -> Steps:
    """Those from first to last that have ended and that no eval held.  ranks: how many have ended it."""
    table = tables.query(
        f"SELECT {_COLUMNS} FROM python.step_trace WHERE step BETWEEN {first} AND {last} AND duration IS NOT NULL "
        "GROUP BY step HAVING NOT COALESCE(BOOL_OR(eval_duration > 0), FALSE) ORDER BY step"
    ).table
    return {
        name: column.to_numpy().astype(np.float64)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def whole(*sides: Steps) -> list[Steps]:
    """Only the steps that all ranks have ended."""
    ranks = max((side["ranks"].max() for side in sides if len(side["ranks"])), default=0)
    return [{name: values[side["ranks"] == ranks] for name, values in side.items()} for side in sides]


def settling(seconds: Values) -> int:
    """How many of the first steps to leave out: those that took over twice the median, up to the first that did not.
    New workers, compilation and caches make the first steps slow on either side; later steps are never left out."""
    return int(np.argmin(seconds > _SETTLES * np.median(seconds))) if len(seconds) else 0


def alike(before: Sequence[Steps], after: Sequence[Steps]) -> tuple[list[list[Values]], list[str]]:
    """(for each side, which steps of each of its runs to compare; notes): all, unless one side has more sampled steps
    than the other."""
    sampled = [[run["sampled"] > 0 for run in side] for side in (before, after)]
    shares = [float(np.concatenate(side).mean()) for side in sampled]
    every = [[np.ones(len(run), np.bool_) for run in side] for side in sampled]
    if abs(shares[0] - shares[1]) <= _UNLIKE:
        return every, []
    told = f"{pct(shares[0])} of the steps before were sampled, {pct(shares[1])} after"
    kinds = [sampled, [[~run for run in side] for side in sampled]]
    counts = [min(run.sum() for side in kind for run in side) for kind in kinds]
    least, best = max(counts), kinds[int(np.argmax(counts))]
    if least < LEAST_STEPS:
        return every, [f"{told}, and sampled steps take a little longer."]
    return best, [f"{told}: only {'sampled' if best is sampled else 'unsampled'} steps are compared."]


def filled(samples: Values) -> Values:
    """A step whose samples are unknown counts as the mean of the others; NaN if all are."""
    known = samples[~np.isnan(samples)]
    return np.where(np.isnan(samples), known.mean() if len(known) else np.nan, samples)
