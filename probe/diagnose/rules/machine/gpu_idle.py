"""Devices that have nothing to do for much of the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....errors import SilentError
from ...figures import figure, pct
from ...ratio import sure_above
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.15  # of the time: what a job with a kernel or two too few loses anyhow
_LEAST_SECONDS = 8  # samples
DEVICES = (
    "SELECT uuid, MIN(rank) AS rank, MIN(device) AS device, MIN(name) AS name, COUNT(*) AS seconds, "
    "AVG(gpu_util_pct) AS util_pct, COALESCE(STDDEV_SAMP(gpu_util_pct), 0) AS spread, AVG(power_w) AS power_w, "
    "MAX(power_limit_w) AS power_limit_w FROM host.gpu_trace WHERE {window} AND gpu_util_pct IS NOT NULL GROUP BY uuid "
    "ORDER BY util_pct"
)


def _find(watched: Watched) -> Iterator[Finding]:
    rows = [row for row in watched.rows(DEVICES) if row["seconds"] >= _LEAST_SECONDS]
    if not rows:
        raise SilentError("No device whose load is known.", code="unseen")
    idle = [row for row in rows if 1 - row["util_pct"] / 100 >= LEAST]
    if idle:
        yield _finding(watched, idle, len(rows))


def _finding(watched: Watched, idle: list[dict[str, Any]], count: int) -> Finding:
    """One for all devices: the mean over those that idle, as far as a step is concerned."""
    share = sum(1 - row["util_pct"] / 100 for row in idle) / len(idle)
    error = sum((row["spread"] / 100) / (row["seconds"] / 2) ** 0.5 for row in idle) / len(idle)
    which = f"{idle[0]['device']} of rank {idle[0]['rank']}" if len(idle) == 1 else f"{len(idle)} of {count} devices"
    return Finding(
        f"Idle: no kernel runs on {which} for {pct(share)} of the time.",
        tuple(sorted(row["rank"] for row in idle)),
        why=[_power(row) for row in idle[:1] if row["power_w"] and row["power_limit_w"]],
        seconds=share * watched.step_s, share=share, confidence=sure_above(share, error, LEAST),
        remedy="what the host does meanwhile: see the other findings, and the phases in python.step_trace",
    )  # fmt: skip


def _power(row: dict[str, Any]) -> str:
    return f"{row['device']} ({row['name']}) draws {figure(row['power_w'])} of {figure(row['power_limit_w'])} W"


GPU_IDLE: Rule[Watched] = Rule(
    "gpu-idle",
    "A device has nothing to do for much of the time.",
    _find,
    needs=("host.gpu_trace", "python.step_trace"),
    sql=DEVICES,
)
