"""The functions that a profile spent its time in.

Called by the verb profile.  Invariant: pure; each sample counts once for the function it stood in, and once for each
that called it, however often that is in its stack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..text import short
from .launch import RankProfile

SQL = """SELECT function, file, line, stack, SUM(seconds) AS seconds
FROM python.profile WHERE is_main AND ({}) GROUP BY ALL"""

# Samples, of whichever profile: the last one has the newest.
KEPT = "SELECT rank, kept FROM probe.drops WHERE stream = 'profile_samples'"


class Hot(NamedTuple):
    """self_s: time in which the innermost function of the job's own code was this one; total_s: in which it was in the
    stack; shares are of all samples that could be read; mostly: the line of it that took most of self_s, the innermost
    function there if that is a library's, and the share."""

    function: str
    where: str
    self_s: float
    self_pct: float
    total_s: float
    mostly: str


def rows_of(taken: Iterable[RankProfile]) -> str:
    """The SQL for the rows of these profiles, each of which has the clock of its host."""
    return SQL.format(" OR ".join(f"rank = {t.rank} AND start_ns BETWEEN {t.start_ns} AND {t.end_ns}" for t in taken))


def hottest(rows: Iterable[Mapping[str, Any]]) -> list[Hot]:
    """The functions by their own time.  rows: of SQL."""
    own: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    total: dict[str, float] = defaultdict(float)
    for row in rows:
        if row["stack"] is not None:
            named = {_without_line(frame) for frame in row["stack"]}
            for frame in named:
                total[frame] += row["seconds"]
            own[_own(row)][_place(row)] += row["seconds"]
    whole = sum(sum(places.values()) for places in own.values())
    found = [_hot(frame, places, whole, total[frame]) for frame, places in own.items()]
    return sorted(found, key=lambda each: -each.self_s)


def _hot(frame: str, places: Mapping[str, float], whole: float, total: float) -> Hot:
    seconds = sum(places.values())
    place, most = max(places.items(), key=lambda item: item[1])
    return Hot(*_split(frame), seconds, 100 * seconds / whole, total, f"{place}: {100 * most / seconds:.0f} %")


def _place(row: Mapping[str, Any]) -> str:
    """`line 41`, or `line 41, in Linear.forward` where a library's function is the innermost."""
    innermost, _ = _split(_without_line(row["stack"][-1]))
    return f"line {row['line']}" + (f", in {innermost}" if innermost != row["function"] else "")


def _without_line(frame: str) -> str:
    return f"{frame.rpartition(':')[0]})"


def _own(row: Mapping[str, Any]) -> str:
    """As the stack has it."""
    return f"{row['function']} ({short(row['file'])})"


def _split(frame: str) -> tuple[str, str]:
    function, _, where = frame.rpartition(" (")
    return function, where.removesuffix(")")
