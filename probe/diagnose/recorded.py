"""Whether a recording ends in a hang: a collective that was in flight to its end, and after which no step began.

Called by Recording.why, before steps are judged.  Invariant: it tells what tables show; what a missing rank did instead
only stacks would tell.
"""

from __future__ import annotations

from typing import Any

from ..text import title
from .diagnosis import Cause, Diagnosis
from .rule import Finding, Tables

_LEAST_S, _LEAST_STEPS = 30.0, 20  # that it has stood for, and how many usual steps: a checkpoint takes some
_IN_FLIGHT = f"""
WITH steps AS (SELECT MAX(time) AS last, MEDIAN(duration) AS usual FROM python.step_trace),
     seen AS (SELECT MAX(time) AS until FROM host.process_trace)
SELECT step, operation_type, group_name, bytes, arrived, missing, mismatch, usual, until::VARCHAR AS until,
    epoch(until - first_time) AS seconds
FROM probe.collectives, steps, seen
WHERE state = 'in_flight' AND first_time >= COALESCE(last, first_time)
    AND epoch(until - first_time) >= GREATEST({_LEAST_S}, {_LEAST_STEPS} * COALESCE(usual, 0))
ORDER BY first_time LIMIT 1
"""


def hung(tables: Tables) -> Diagnosis | None:
    """The verdict on a job that hung to the end of its recording; None where none shows.  Cost: a query."""
    found = tables.query(_IN_FLIGHT).to_pylist()
    if not found:
        return None
    (row,) = found
    cause = Cause(_code(row), "critical", _finding(row, tables.endpoint))
    return Diagnosis(tables.endpoint, [cause], state="hung")


def _code(row: dict[str, Any]) -> str:
    """As of the verdicts of `probe hang`."""
    return "mismatch" if row["mismatch"] else "waiting" if row["missing"] else "collective"


def _finding(row: dict[str, Any], endpoint: str) -> Finding:
    arrived, missing = row["arrived"] or [], row["missing"] or []
    step = "" if row["step"] is None else f" of step {row['step']}"
    size = "" if row["bytes"] is None else f", {row['bytes']} bytes"
    what = f"{row['operation_type']}{step} (group {row['group_name']}{size})"
    stood = f"for {row['seconds']:.0f} s, to the end of the recording"
    waited = f"{title(arrived)} had been in the {what} {stood}"
    why = [f"Then came no step; the last sample is of {row['until']} UTC."]
    if row["usual"] is not None:
        why.append(f"The usual step took {row['usual'] * 1e3:.0f} ms.")
    if row["mismatch"]:
        sentence = f"Stuck: {waited}; the ranks differ: {row['mismatch']}."
    elif missing:
        sentence = f"Stuck: {title(missing)} had not reached the {what}, in which {title(arrived)} had been {stood}."
    else:
        sentence = f"Stuck: {waited}; all ranks had arrived."
    return Finding(sentence, tuple(missing or arrived), why, remedy=f"probe {endpoint} query {_query(row)}")


def _query(row: dict[str, Any]) -> str:
    return f"\"SELECT * FROM python.nccl_trace WHERE state = 'in_flight' AND step >= {row['step'] or 0}\""
