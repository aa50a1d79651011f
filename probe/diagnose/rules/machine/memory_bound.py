"""Devices that spend their time on moving bytes."""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import SilentError
from ...figures import figure, pct
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.5  # of the device's time
# Of the last capture, as `why` makes none: it would take the job a while.
_SQL = (
    "SELECT module, stage, SUM(device_duration) AS seconds, SUM(SUM(device_duration)) FILTER (MODE(bound) = 'memory') "
    "OVER () / SUM(SUM(device_duration)) OVER () AS part, MODE(bound) AS bound, AVG(memory_gbps) AS memory_gbps, "
    "AVG(peak_share) AS peak_share, SUM(SUM(device_duration)) OVER () / (SELECT COUNT(DISTINCT (rank, step)) FROM "
    "python.module_cost) AS device_s FROM python.module_cost WHERE device_duration IS NOT NULL GROUP BY ALL "
    "ORDER BY seconds DESC"
)


def _find(watched: Watched) -> Iterator[Finding]:
    rows = watched.rows(_SQL)
    if not any(row["bound"] for row in rows):
        raise SilentError(
            "No capture of operators on a device.", f"Run: probe {watched.endpoint} capture --shapes", "unseen"
        )
    part = rows[0]["part"] or 0.0
    if part < LEAST:
        return
    most = next(row for row in rows if row["bound"] == "memory")
    rate = f"{figure(most['memory_gbps'])} GB/s, {pct(most['peak_share'])} of the peak"
    seconds = min(watched.step_s, part * rows[0]["device_s"])
    yield Finding(
        f"Memory-bound: modules that take {pct(part)} of the device's time wait for its memory.",
        why=[f"{most['module']} ({most['stage']}): {rate}"],
        where=f"most of it in {most['module']}, {most['stage']}",
        remedy="fewer passes over the same tensors: torch.compile, fused kernels, a smaller dtype",
        seconds=seconds, share=seconds / watched.step_s, severity="hint",
    )  # fmt: skip


MEMORY_BOUND: Rule[Watched] = Rule(
    "memory-bound",
    "Most of a device's time goes into moving bytes.",
    _find,
    needs=("python.module_cost", "python.step_trace"),
    sql=_SQL,
)
