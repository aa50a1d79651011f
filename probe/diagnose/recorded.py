"""Whether a recording ends in a hang: as its recorder saw, or by a collective that was in flight to its end.

Called by Recording.why, before steps are judged.  Invariant: no step began after what is told; what a missing rank did
instead is told only where the recorder has seen stacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime, timezone
from typing import Any

from ..text import title
from .diagnosis import Cause, Diagnosis
from .hang.report import Report
from .rule import Finding, Tables
from .why import of_state

LEAST_S, _LEAST_STEPS = 30.0, 20  # that it has stood for, and how many usual steps: a checkpoint takes some
_IN_FLIGHT = f"""
WITH steps AS (SELECT MAX(time) AS last, MEDIAN(duration) AS usual FROM python.step_trace),
     seen AS (SELECT MAX(time) AS until FROM host.process_trace)
SELECT step, operation_type, group_name, group_seq, bytes, arrived, missing, unknown, mismatch, usual,
    until::VARCHAR AS until, epoch(until - first_time) AS seconds
FROM probe.collectives, steps, seen
WHERE state = 'in_flight' AND first_time >= COALESCE(last, first_time)
    AND epoch(until - first_time) >= GREATEST({LEAST_S}, {_LEAST_STEPS} * COALESCE(usual, 0))
ORDER BY first_time LIMIT 1000
"""
_RANKS = ("arrived", "missing", "unknown")
_OPERATION = ("group_name", "group_seq", "operation_type", "step")  # each host has a row of it, of its own ranks


_LATER = "SELECT COUNT(*) AS later FROM python.step_trace WHERE time + to_seconds(COALESCE(duration, 0)) > '{time}'"
_OF_A_JOB = ("eval", "profile")  # verbs that a recording refuses
_MAY_END = ("gone", "stands", "unknown")  # verdicts on a job that may just be about to end, or to wait for something


def may_have_ended(seen: Diagnosis) -> bool:
    """Whether a job looks like that, too, which ends in order: nothing was in flight."""
    return any(each.code in _MAY_END for each in seen.findings)


def stood(tables: Tables, seen: Mapping[str, Any]) -> Diagnosis | None:
    """The verdict of the recorder's last look at a job in which no step came; None where steps have come since.

    seen: the fields of its report, and when that was; {} for none.  Cost: a query.
    """
    try:
        report = Report(**{each.name: seen[each.name] for each in fields(Report)})
        time = datetime.fromtimestamp(seen["wall_ns"] / 1e9, timezone.utc).replace(tzinfo=None)
        why = [f"As the recorder saw at {time:%Y-%m-%d %H:%M:%S} UTC; no step came after that.", *report.why]
        told = of_state(tables.endpoint, replace(report, why=[*why, *report.stacks], next=[]))
    except (LookupError, TypeError, ValueError, OverflowError):  # no recorder wrote that
        return None
    (row,) = tables.query(_LATER.format(time=time)).to_pylist()
    return None if row["later"] else told


def without_job(told: Diagnosis) -> Diagnosis:
    """Its remedies as for a job that runs: a recording has nothing to change."""

    def of_any(cause: Cause) -> Cause:
        remedy = cause.finding.remedy
        for verb in _OF_A_JOB:
            remedy = remedy.replace(f"probe {told.endpoint} {verb}", f"probe $ENDPOINT {verb}")
        of_job = replace(cause, finding=replace(cause.finding, remedy=remedy))
        return of_job.with_consequences(map(of_any, cause.consequences))

    return replace(told, findings=[*map(of_any, told.findings)])


def hung(tables: Tables, seen: Diagnosis | None = None) -> Diagnosis | None:
    """The verdict on a job that hung to the end of its recording; None where none shows.  Cost: a query.

    seen: by a recorder, that the job stands; it counts where rows do not tell who was waited for.
    """
    found = tables.query(_IN_FLIGHT).to_pylist()
    if not found:
        return None
    row = _of_all_hosts(found)
    if row["unknown"] and not row["missing"] and not row["mismatch"] and seen is not None and seen.state == "hung":
        return seen
    cause = Cause(_code(row), "critical", _finding(row, tables.endpoint))
    return Diagnosis(tables.endpoint, [cause], state="hung")


def _of_all_hosts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The first operation, as all hosts together know it."""
    same = [row for row in rows if all(row[name] == rows[0][name] for name in _OPERATION)]
    arrived, missing, unknown = ({rank for row in same for rank in row[name] or []} for name in _RANKS)
    return {
        **rows[0],
        "arrived": sorted(arrived), "missing": sorted(missing - arrived),
        "unknown": sorted(unknown - arrived - missing),
        "mismatch": next((row["mismatch"] for row in same if row["mismatch"]), None),
    }  # fmt: skip


def _code(row: dict[str, Any]) -> str:
    """As of the verdicts of `probe hang`."""
    return "mismatch" if row["mismatch"] else "waiting" if row["missing"] or row["unknown"] else "collective"


def _finding(row: dict[str, Any], endpoint: str) -> Finding:
    arrived, missing, unknown = (row[name] for name in _RANKS)
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
    elif unknown:
        sentence = f"Stuck: {waited}; {title(unknown)} had ended by then, or was not recorded."
    else:
        sentence = f"Stuck: {waited}; all ranks had arrived."
    return Finding(sentence, tuple(missing or unknown or arrived), why, remedy=f"probe {endpoint} query {_query(row)}")


def _query(row: dict[str, Any]) -> str:
    return f"\"SELECT * FROM python.nccl_trace WHERE state = 'in_flight' AND step >= {row['step'] or 0}\""
