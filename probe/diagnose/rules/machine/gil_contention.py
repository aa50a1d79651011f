"""Another thread of the job that holds the GIL while the training wants to go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ....errors import SilentError
from ....host.agent_memory import here
from ....host.process_status import thread_ids
from ....host.processor_use import blocked
from ...figures import ms, pct
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.05  # of the step
_WAIT_US = 500  # on average, for any thread that wants the GIL; where nobody keeps it, some 10
_LOOK_S = 1.0
_TRAINS = "COALESCE(thread IN (SELECT thread FROM python.profile WHERE phase IS NOT NULL), is_main)"
_SQL = (
    f"WITH samples AS (SELECT *, {_TRAINS} AS trains FROM python.profile WHERE {{window}}), trains AS (SELECT * FROM "
    "samples WHERE trains), holds AS (SELECT rank, start_ns, thread_name, function, file, line FROM samples WHERE "
    "holds_gil AND NOT trains) SELECT holds.rank, ANY_VALUE(thread) AS thread, holds.thread_name, holds.function, "
    "holds.file, MODE(holds.line) AS line, SUM(seconds) AS seconds, (SELECT SUM(seconds) FROM trains) AS whole FROM "
    "trains JOIN holds USING (rank, start_ns) WHERE NOT holds_gil AND COALESCE(phase, 'other') NOT IN ('data', 'comm', "
    "'eval') GROUP BY ALL ORDER BY seconds DESC"
)
_WAITS = "SELECT AVG(gil_wait_us) AS us FROM host.process_trace WHERE {window}"


def _find(watched: Watched) -> Iterator[Finding]:
    if watched.why_not_profiled:
        raise SilentError(f"No profile: {watched.why_not_profiled}.", code="no-profile")
    rows, (waits,) = watched.rows(_SQL), watched.rows(_WAITS)
    if not rows or (waits["us"] or 0.0) < _WAIT_US:
        return
    held = sum(row["seconds"] for row in rows) / rows[0]["whole"]
    share = held if held < LEAST else min(held, _blocked(watched, rows[0]))
    if share >= LEAST:
        yield _finding(watched, rows[0], held, share, waits["us"])


def _finding(watched: Watched, most: dict[str, Any], held: float, share: float, wait_us: float) -> Finding:
    thread = most["thread_name"] or "another thread"
    place = f"{most['function']} ({os.path.basename(most['file'] or '')}:{most['line']})" if most["function"] else ""
    return Finding(
        f"GIL contention: {pct(share)} of each step waits for the GIL, which thread {thread} holds.",
        why=[
            f"it holds it {pct(held)} of the time in which the training computes; whoever wants it waits "
            f"{ms(wait_us / 1e6)} on average",
        ],
        where=place,
        remedy=f"what thread {thread} does in {place or 'Python'}: in a process of its own, or with pauses",
        seconds=share * watched.step_s, share=share,
    )  # fmt: skip


def _blocked(watched: Watched, row: dict[str, Any]) -> float:
    """Share of the time in which the training thread neither runs nor waits for a core: it waits for the GIL no longer
    than that.  1 if its host is elsewhere."""
    pid = next((here(facts) for facts in watched.agents if (facts.rank or 0) == row["rank"]), None)
    if pid is None:
        return 1.0
    try:
        found = blocked(pid, thread_ids(pid).get(row["thread"], pid), _LOOK_S)
    except OSError:
        return 1.0
    return 1.0 if found is None else found


GIL_CONTENTION: Rule[Watched] = Rule(
    "gil-contention",
    "Another thread of the job holds the GIL while the training wants to go on.",
    _find,
    needs=("python.profile", "host.process_trace", "python.step_trace"),
    of=("gpu-idle",),
    sql=_SQL,
)
