"""What collectives cost a job beyond the wait for its last rank, and what they are.

Called by the rules on ranks.  Invariant: a rank that waits for another one is not communication; stragglers.py has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import SilentError, UsageError
from ..watched import Phase, Watched

MB = 1 << 20
TAKES = (
    "SELECT operation_type, COUNT(*) / COUNT(DISTINCT step) AS a_step, AVG(bytes) / 1048576 AS mb, "
    "AVG(duration_ms) AS ms, AVG(list_avg(wait_ms)) AS wait_ms, SUM(duration_ms) AS takes, "
    "SUM(list_avg(wait_ms)) AS waits FROM probe.collectives WHERE {window} AND group_size > 1 "
    "AND duration_ms IS NOT NULL GROUP BY operation_type ORDER BY takes DESC"
)
OPERATIONS = (
    "SELECT source, backend, operation_type, COUNT(*) / COUNT(DISTINCT (rank, step)) AS a_step, "
    "AVG(bytes) / 1048576 AS mb, SUM(duration_ms) AS ms FROM python.nccl_trace WHERE {window} AND NOT in_eval "
    "AND group_size > 1 GROUP BY ALL ORDER BY ms DESC NULLS LAST"
)
# What is hidden is hidden behind arithmetic, so that at least the rest of the operations' time is not.  A step with a
# module whose time on the device is unknown does not tell how much arithmetic there was.
_EXPOSED = (
    "WITH sent AS (SELECT rank, step, SUM(duration_ms) / 1e3 AS seconds FROM python.nccl_trace WHERE {window} "
    "AND backend = 'nccl' AND state = 'done' GROUP BY ALL), computed AS (SELECT rank, step, SUM(duration) AS seconds "
    "FROM python.torch_trace WHERE {window} AND device LIKE 'cuda%' AND stage <> 'comm' GROUP BY ALL "
    "HAVING COUNT(*) = COUNT(duration)) "
    "SELECT AVG(GREATEST(sent.seconds - computed.seconds, 0)) AS seconds FROM sent JOIN computed USING (rank, step)"
)


@dataclass(frozen=True)
class Communication:
    """seconds: of the mean step, that collectives block the training beyond the wait for the last rank; on devices at
    least so much; blocked: the phase with that wait; part: what is left of it without; types: kinds of operations, the
    dearest first."""

    seconds: float
    blocked: Phase
    part: float
    types: list[dict[str, Any]]


def communication(watched: Watched) -> Communication:
    """Raises UsageError for one rank, SilentError where too little is known."""
    require_ranks(watched)
    blocked, types = watched.phase("comm"), watched.rows(TAKES)
    takes, waits = (sum(row[name] for row in types) for name in ("takes", "waits"))
    if not takes:
        raise SilentError("No collective was seen on all its ranks.", code="few-steps")
    part = takes / (takes + waits)
    seconds = min(watched.step_s, blocked.seconds + _exposed(watched))  # a host may wait for what a device shows, too
    return Communication(seconds * part, blocked, part, types)


def ddp_part(watched: Watched) -> float:
    """The share of the operations' time, 0 to 1, that DDP's all_reduces of gradients take."""
    rows = watched.rows(OPERATIONS)
    whole = sum(row["ms"] or 0.0 for row in rows)
    ddp = sum(row["ms"] or 0.0 for row in rows if (row["source"], row["operation_type"]) == ("ddp", "all_reduce"))
    return ddp / whole if whole else 0.0


def require_ranks(watched: Watched) -> None:
    """Raises UsageError if there is nothing to compare."""
    if len(watched.ranks) > 1:
        return
    size = max((facts.world_size or 1 for facts in watched.agents), default=1)
    if size > 1:
        raise UsageError(f"Only one of {size} ranks is attached here.", "Give the pid of the launcher.", "one-rank")
    raise UsageError("Only one rank: nothing to compare.", code="one-rank")


def _exposed(watched: Watched) -> float:
    if not any(row["backend"] == "nccl" for row in watched.rows(OPERATIONS)):
        return 0.0
    (row,) = watched.rows(_EXPOSED)
    return row["seconds"] or 0.0
