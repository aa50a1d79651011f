"""Memory that grows from step to step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from ....errors import QueryError, SilentError
from ....text import grouped
from ...figures import figure, megabytes
from ...measures.growth import LEAST, Growth, growth
from ...measures.memory_left import LIMITS, Left, left
from ...rule import Finding, Rule, Severity
from ...watched import Watched

_LEAST_MB, _LEAST_PART = 16.0, 0.01  # that it has grown by, and of what it is: less comes and goes
_HOUR_S, _DAY_S = 3600.0, 86400.0
_AHEAD = 1000  # times what was seen: beyond that nobody knows whether it goes on
_LOOK_S, _LOOKS_S = 2.0, 6.0  # between two looks at who holds what, and at most for it
_EXPLAINS = 0.5  # of the growth of tensors: whose holder has grown by so much
_SQL = (
    "SELECT rank, device, step, COALESCE(allocated_mb, rss_mb - shared_mb) AS mb FROM python.memory_trace "
    "WHERE step > 0 AND NOT in_eval QUALIFY ROW_NUMBER() OVER (PARTITION BY rank, device ORDER BY start_ns) % "
    "GREATEST(1, COUNT(*) OVER (PARTITION BY rank, device) // 300) = 0 ORDER BY rank, device, start_ns"
)
_HELD = (
    "SELECT kind, regexp_replace(holder, '\\[[0-9]+\\]', '[*]', 'g') AS holder, SUM(bytes) / 1048576 AS mb FROM "
    "python.tensor_trace WHERE rank = {rank} GROUP BY ALL"
)


def _find(watched: Watched) -> Iterator[Finding]:
    samples = grouped(((row["rank"], row["device"]), row) for row in watched.rows(_SQL) if row["mb"] is not None)
    if all(len(rows) < LEAST for rows in samples.values()):
        raise SilentError(f"Fewer than {LEAST} seconds tell how much memory is used.", code="few-steps")
    found = {key: grown for key, rows in samples.items() if (grown := _grown(rows)) is not None}
    fastest = max(found, key=lambda key: found[key].a_step, default=None)
    if fastest is not None:
        yield _finding(watched, *fastest, found[fastest])


def _grown(rows: Sequence[dict[str, Any]]) -> Growth | None:
    values = [row["mb"] for row in rows]
    grown = growth([row["step"] for row in rows], values)
    return grown if grown is not None and grown.whole >= max(_LEAST_MB, _LEAST_PART * values[-1]) else None


def _finding(watched: Watched, rank: int, device: str, grown: Growth) -> Finding:
    limit = left(watched, rank, device)
    mb_s = grown.a_step / watched.step_s
    seen_s = (grown.last - grown.first) * watched.step_s
    holder = _holder(watched, rank, grown)
    memory = f"{megabytes(grown.a_step)} more of " + ("the host's memory" if device == "cpu" else f"memory of {device}")
    return Finding(
        f"Memory creep: rank {rank} takes {memory} in each step{_ahead(limit, mb_s)}.",
        (rank,),
        why=[f"{figure(grown.whole)} MB more in {grown.last - grown.first} steps, {megabytes(mb_s)} a second"],
        where=f"held by {holder}" if holder else "",
        remedy=f"what {holder} keeps: .item() or .detach() of it, or less of it" if holder else "",
        severity=_severity(limit, mb_s, seen_s),
    )  # fmt: skip


def _ahead(limit: Left | None, mb_s: float) -> str:
    """How long that can go on."""
    if limit is None:
        return ""
    hours = limit.mb / mb_s / _HOUR_S
    return f"; {limit.what} is full in {f'{figure(hours)} h' if hours >= 1 else f'{figure(60 * hours)} min'}"


def _severity(limit: Left | None, mb_s: float, seen_s: float) -> Severity:
    """By the time until the memory is full."""
    if limit is None or limit.mb / mb_s > min(_DAY_S, _AHEAD * seen_s):
        return "hint"
    return "critical" if limit.mb / mb_s < _HOUR_S else "warning"


def _holder(watched: Watched, rank: int, grown: Growth) -> str:
    """Whose tensors have become more between two looks at all of them; '' if that is nobody's in particular."""
    sql = _HELD.replace("{rank}", str(rank))
    before = watched.kept.get(sql)
    if before is None:
        try:
            before = watched.kept[sql] = _held(watched.now(sql))
        except QueryError:  # a recording does not have it
            return ""
        time.sleep(min(_LOOKS_S, max(_LOOK_S, 10 * watched.step_s)))
    after = _held(watched.now(sql))
    more = {holder: mb - before.get(holder, 0.0) for holder, mb in after.items()}
    most = max(more, key=lambda holder: more[holder], default="")
    whole = sum(each for each in more.values() if each > 0)
    return most if most and more[most] > _EXPLAINS * whole else ""


def _held(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {row["holder"]: row["mb"] for row in rows if row["holder"]}


MEMORY_CREEP: Rule[Watched] = Rule(
    "memory-creep",
    "The memory of a rank grows from step to step.",
    _find,
    needs=("python.memory_trace", "host.process_trace", "host.gpu_trace", "python.tensor_trace"),
    sql=_SQL,
    asks=(LIMITS,),
)
