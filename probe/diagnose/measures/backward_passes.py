"""The backward passes of each step, told apart by what they go through and by the optimizers' steps before them.

Used by rules on gradients that add up over passes.  Invariant: passes add up only if they go through the same models
with no optimizer's step between them; those of several losses, each with an optimizer of its own, do not.
"""

from __future__ import annotations

# roots: the models of the pass; updates: after how many other passes of the step an optimizer has stepped by then.
PASSES = (
    "SELECT rank, step, micro_step, MIN(start_ns) FILTER (stage = 'backward') AS start_ns, LIST(DISTINCT root ORDER BY "
    "root) FILTER (stage = 'backward' AND depth = 0) AS roots, SUM(BOOL_OR(stage = 'step')::INT) OVER (PARTITION BY "
    "rank, step ORDER BY micro_step) AS updates FROM python.torch_trace WHERE {window} AND NOT in_eval AND stage IN "
    "('backward', 'step') GROUP BY rank, step, micro_step QUALIFY BOOL_OR(stage = 'backward')"
)
USES = "COUNT(DISTINCT (roots, updates))"  # how many sums of gradients these passes make, of which each is used once
