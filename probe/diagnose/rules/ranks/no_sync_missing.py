"""Gradients that DDP averages after each backward pass, though several add up before an optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import figure, pct
from ...measures.backward_passes import PASSES, USES
from ...measures.communication import communication, ddp_part, require_ranks
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.01  # of the step
# The same operations in each backward pass: a GAN's two models send different ones.
_SQL = (
    f"WITH passes AS ({PASSES}), operations AS (SELECT rank, step, start_ns, seq, bytes FROM python.nccl_trace WHERE "
    "{window} AND source = 'ddp' AND operation_type = 'all_reduce'), sent AS (SELECT passes.rank, passes.step, "
    "micro_step, roots, updates, LIST(bytes ORDER BY seq) AS bytes FROM operations ASOF JOIN passes ON operations.rank "
    "= passes.rank AND operations.step = passes.step AND operations.start_ns >= passes.start_ns GROUP BY ALL), steps "
    f"AS (SELECT rank, step, COUNT(*) AS synced, {USES} AS needed, COUNT(DISTINCT bytes) AS kinds, "
    "ANY_VALUE(len(bytes)) AS operations FROM sent GROUP BY ALL) SELECT MODE(synced) AS synced, MODE(needed) AS "
    "needed, MODE(micro_steps) AS micro_steps, MAX(kinds) AS kinds, MODE(operations) AS operations FROM steps JOIN "
    "(SELECT rank, step, COUNT(*) AS micro_steps FROM passes GROUP BY ALL) USING (rank, step)"
)


def _find(watched: Watched) -> Iterator[Finding]:
    require_ranks(watched)
    part = unneeded(watched)
    seconds = communication(watched).seconds * part if part else 0.0
    share = seconds / watched.step_s
    if share < LEAST:
        return
    (row,) = watched.rows(_SQL)
    yield Finding(
        f"Missing no_sync: DDP averages the gradients {row['synced']} times a step, which takes {pct(share)} of it.",
        why=[f"{figure(row['operations'])} all_reduces in each of {row['micro_steps']} backward passes of a step"],
        remedy="with model.no_sync(): around all backward passes before an optimizer's step but the last",
        seconds=seconds, share=share, saves=seconds, assumes="with one of them for each optimizer's step",
    )  # fmt: skip


def unneeded(watched: Watched) -> float:
    """The share of all operations' time, 0 to 1, that DDP's take which only repeat what an optimizer needs once."""
    (row,) = watched.rows(_SQL)
    if not row["synced"] or row["kinds"] > 1:
        return 0.0
    return max(0.0, 1 - float(row["needed"]) / float(row["synced"])) * ddp_part(watched)


NO_SYNC_MISSING: Rule[Watched] = Rule(
    "no-sync-missing",
    "DDP averages gradients after each backward pass, though several add up before an optimizer steps.",
    _find,
    needs=("python.step_trace", "python.nccl_trace", "probe.collectives", "python.torch_trace"),
    of=("communication-bound", "gpu-idle"),
    sql=_SQL,
)
