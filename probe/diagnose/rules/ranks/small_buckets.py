"""Gradients that DDP sends in many small operations."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...figures import figure, pct
from ...measures.communication import MB, communication, ddp_part, require_ranks
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step
_MANY = 8  # small operations a step: fewer cost little, and DDP's first bucket is small anyhow
_TIMES = 4  # as many as DDP would send by default, with
_USUAL_MB = 25
_SQL = (
    f"SELECT COUNT(*) / COUNT(DISTINCT (rank, step)) AS a_step, COUNT(*) FILTER (bytes < {MB}) / COUNT(DISTINCT (rank, "
    f"step)) AS small, AVG(bytes) FILTER (bytes < {MB}) / {MB} AS mb, SUM(bytes) / COUNT(DISTINCT (rank, step)) / {MB} "
    f"AS mb_a_step, SUM(duration_ms) FILTER (bytes < {MB}) / SUM(duration_ms) AS part FROM python.nccl_trace "
    "WHERE {window} AND source = 'ddp' AND operation_type = 'all_reduce'"
)


def _find(watched: Watched) -> Iterator[Finding]:
    require_ranks(watched)
    (row,) = watched.rows(_SQL)
    usual = math.ceil((row["mb_a_step"] or 0.0) / _USUAL_MB) + 1
    if (row["small"] or 0) < max(_MANY, _TIMES * usual) or not row["part"]:
        return
    seconds = communication(watched).seconds * ddp_part(watched) * row["part"]
    share = seconds / watched.step_s
    if share < LEAST:
        return
    yield Finding(
        f"Small buckets: DDP sends {figure(row['small'])} gradients of {figure(row['mb'])} MB a step, which takes "
        f"{pct(share)} of it.",
        why=[f"{figure(row['mb_a_step'])} MB a step are {usual} operations with DDP's own bucket_cap_mb=25"],
        remedy="DistributedDataParallel(…, bucket_cap_mb=25)", seconds=seconds, share=share,
    )  # fmt: skip


SMALL_BUCKETS: Rule[Watched] = Rule(
    "small-buckets",
    "DDP sends gradients in many small operations.",
    _find,
    needs=("python.step_trace", "python.nccl_trace", "probe.collectives"),
    of=("communication-bound", "gpu-idle"),
    sql=_SQL,
)
