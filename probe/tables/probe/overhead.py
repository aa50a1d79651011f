"""probe.overhead: what recording costs, compared within the run itself.

Steps are of three kinds (design.md): sampled, unsampled, and bare, which have no tap in but the one that counts them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.arrow import columns_of
from ...arrays.integers import Ints
from ...schema import Column, Columns
from ...snapshot.snapshot import Snapshot
from ...snapshot.source import Rank
from ...streams import BARE, EXTRA, SAMPLED, SPANS, STEPS
from ..declaration import IDENTITY, MOMENT, Table, identity

ENOUGH = 30  # steps of a kind below which a median says nothing
_KINDS = (("sampled", SAMPLED), ("unsampled", 0), ("bare", BARE))


def durations(rank: Rank) -> tuple[Ints, Ints]:
    """(ns, kind) of the steps that can be compared: not the first of its kind after a change, none with an eval.

    Steps that are sampled beside the chosen blocks (the first ones) are of no kind."""
    rows = rank.rows(STEPS)
    order = np.argsort(rows["count"], kind="stable")
    ends, flags = rows["time_ns"][order], rows["flags"][order] & (SAMPLED | EXTRA | BARE)
    follows = (np.diff(rows["count"][order]) == 1) & (flags[1:] == flags[:-1])
    middles = ends[1:] - 1
    begins = ends[:-1]
    for start, end, _ in rank.timeline.evals():
        follows &= (end <= begins) | (start >= middles)
    return (ends[1:] - begins)[follows], flags[1:][follows]


def _of_rank(rank: Rank) -> list[dict[str, Any]]:
    ns, kinds = durations(rank)
    of_kind = {name: ns[kinds == flag] for name, flag in _KINDS}
    median = {name: float(np.median(some)) if len(some) >= ENOUGH else None for name, some in of_kind.items()}
    settings = rank.facts.sampling
    shared = identity(rank)
    if settings is not None:
        shared |= {"sample": str(settings.sample), "every": settings.every, "budget_pct": settings.budget_pct}
    return [
        {
            **shared,
            "steps_of": name,
            "steps": len(of_kind[name]),
            "median_duration": _over(median[name], 1e9),
            "over_bare": _over(median[name], median["bare"]),
        }
        for name, _ in _KINDS
    ]


def _over(value: float | None, unit: float | None) -> float | None:
    return None if value is None or unit is None else value / unit


def derive(job: Snapshot) -> Columns:
    return columns_of(TABLE.columns, [row for rank in job.ranks_with(STEPS, SPANS) for row in _of_rank(rank)])


_FEW = f"Fewer than {ENOUGH} steps."

TABLE = Table(
    name="probe.overhead",
    doc="Three rows per rank: the median duration of steps that were sampled, that were not, and that had no tap at "
    "all.",
    columns=(
        *IDENTITY,
        Column("steps_of", "VARCHAR", "",
               "sampled, unsampled or bare (no tap installed but the one that counts steps).", "flags of the step"),
        Column("steps", "BIGINT", "",
               "Steps compared: whole ones without an eval, except the first after a change of kind.",
               "boundaries between steps"),
        Column("median_duration", "DOUBLE", "s", "Median duration of these steps.", "boundaries between steps", _FEW),
        Column("over_bare", "DOUBLE", "", "median_duration divided by that of bare steps; 1.01 means 1 % longer.",
               "boundaries between steps", f"{_FEW[:-1]} of the kind, or of bare ones."),
        Column("sample", "VARCHAR", "", "The setting: auto, or N to record one block of ten steps in N.", "agent"),
        Column("every", "INTEGER", "", "N, if one block of ten steps in N is sampled now.", "agent"),
        Column("budget_pct", "DOUBLE", "%", "The most that sampling may cost with sample=auto.", "agent"),
    ),
    derive_job=derive,
    final=MOMENT,
    streams=(),
    question="How much longer does a recorded step take than one that is not?",
    example="SELECT rank, steps_of, steps, median_duration, over_bare FROM probe.overhead ORDER BY ALL",
)  # fmt: skip
