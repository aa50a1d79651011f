"""Two models with an optimizer each, such as those of a GAN: passes for one that needlessly go back through the other.

Called by rules/compute/frozen_with_gradients.py.  Invariant: of two models, the one that gets the other's input is the
one that may be cut off; what goes through the other one on its way there is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..figures import ms, pct
from ..rule import Finding
from ..watched import Phase, Watched
from .live_values import OPTIMIZERS, of_model, value
from .module_calls import saved

_MOSTLY = 0.8  # of the passes
_MORE = 1.5  # times as many updates: less may be how the parameters were initialized
# Models are what nothing else calls: roots, or parts of a module that nobody calls, such as a LightningModule.
# Steps in which a time of a device is not known are left out, as in of_steps().
# Passes are told apart by what follows: the step of the optimizer that ends the job's step, or another one before it.
_PASSES = """
WITH outermost AS (SELECT rank, step, seq, start_ns, root || CASE WHEN module = module_type THEN '' ELSE '.' || module
                          END AS root, CASE WHEN device LIKE 'cuda%' THEN total_duration ELSE total_host_duration
                          END AS seconds
                   FROM python.torch_trace
                   WHERE {window} AND stage = 'backward' AND depth = 0 AND root IS NOT NULL AND NOT in_eval),
     untimed AS (SELECT DISTINCT rank, step FROM outermost WHERE seconds IS NULL),
     passes AS (SELECT rank, step, seq, root, SUM(seconds) AS seconds, MIN(start_ns) AS start_ns
                FROM outermost ANTI JOIN untimed USING (rank, step) GROUP BY ALL),
     updates AS (SELECT rank, step, start_ns AS updated_ns FROM python.torch_trace WHERE {window} AND stage = 'step'),
     told AS (SELECT rank, step, seq, root, ANY_VALUE(seconds) AS seconds, start_ns, COUNT(updated_ns) AS later
              FROM passes LEFT JOIN updates USING (rank, step) WHERE updated_ns > start_ns GROUP BY ALL),
     ordered AS (SELECT *, COUNT(*) OVER pass > 1 AND start_ns = MAX(start_ns) OVER pass AS is_last
                 FROM told WINDOW pass AS (PARTITION BY rank, step, seq))
SELECT root, later = 1 AS ends_step, COUNT(*) AS passes, AVG(is_last::INT) AS last, SUM(seconds) AS seconds,
       (SELECT COUNT(*) FROM updates) AS updates, (SELECT COUNT(DISTINCT (rank, step)) FROM updates) AS steps
FROM ordered GROUP BY ALL
""".strip()
UPDATES = (
    "[([i for i, (_, o) in enumerate(optimizers) if {id(p) for g in o.param_groups for p in g['params']} & "
    "{id(p) for p in model.parameters()}], next(model.parameters())._version) "
    f"for optimizers in [{OPTIMIZERS}] for model in (FIRST, OTHER)]"
)


def discarded(watched: Watched, backward: Phase, least: float) -> Iterator[Finding]:
    """backward: the part of the step that all passes take; least: share of the step below which it is not told."""
    rows = watched.rows(_PASSES)
    whole = sum(row["seconds"] for row in rows)
    for root in sorted({row["root"] for row in rows if whole}):
        through = {row["ends_step"]: row for row in rows if row["root"] == root and row["last"] >= _MOSTLY}
        others = sorted({row["root"] for row in rows if row["root"] != root})
        if len(through) == 2 and len(others) == 1:
            part = backward.scaled(_in_vain(watched, root, others[0], through) / whole)
            if part.share >= least:
                yield _finding(watched, root, others[0], part)


def _in_vain(watched: Watched, root: str, other: str, through: dict[bool, dict[str, Any]]) -> float:
    """Seconds in this model of the passes for the other one; 0 if an optimizer trains both, or it cannot be told."""
    told = value(watched, of_model(UPDATES, root, other))
    if not told or any(len(optimizers) != 1 for optimizers, _ in told) or told[0][0] == told[1][0]:
        return 0.0
    (_, updates), (_, updates_of_other) = told
    ends, before = through[True], through[False]
    is_rarer = before["passes"] < ends["passes"]
    rarer, other_passes = (before, ends) if is_rarer else (ends, before)
    if updates * _MORE < updates_of_other:
        return float(other_passes["seconds"])
    if updates > _MORE * updates_of_other:
        return float(rarer["seconds"])
    return float(min(ends["seconds"], before["seconds"]))


def _finding(watched: Watched, root: str, other: str, part: Phase) -> Finding:
    return Finding(
        f"Frozen with gradients: {pct(part.share)} of each step computes gradients of {root} in passes for {other}, "
        "whose optimizer does not use them.",
        why=[f"{ms(part.seconds)} ({ms(part.low)} to {ms(part.high)}) of {ms(watched.step_s)}"],
        remedy=f"{other} gets the output of {root} with .detach() in passes for {other}",
        seconds=part.seconds, share=part.share, confidence=part.sure(0.03), where=root,
        saves=saved(watched, part.seconds), assumes="with the output detached",
    )  # fmt: skip
