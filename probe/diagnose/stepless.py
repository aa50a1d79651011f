"""What a job does in which no step comes, by a profile of its main threads.

Asked by watch.py whether to wait on, and by why.py for the verdict.  Invariant: a function is named only if it explains
most of the time, of all ranks; a job that two looks show to be stuck, idle or compiling gets their verdict.
"""

from __future__ import annotations

import os
from dataclasses import replace

from ..text import title
from .diagnosis import Cause, Diagnosis
from .figures import figure, pct
from .hang.report import Report
from .measures.places import Places, Stack, is_library
from .rule import Finding, Tables

_STACKS = (
    "SELECT rank, stack, file, SUM(seconds) AS seconds FROM python.profile WHERE is_main AND stack IS NOT NULL "
    "AND time > (now() AT TIME ZONE 'UTC') - to_seconds({seconds}) GROUP BY ALL"
)
# Frames of a call of a module, a backward pass or an optimizer: a step, or a call that counts as one, will come.
_AT_MODEL = ("_call_impl (torch/nn/", "_engine_run_backward (torch/", " (torch/optim/")


def is_at_model(tables: Tables, seconds: float) -> bool:
    """Whether a main thread was in a model, by the profiles of so many seconds.  Cost: a query."""
    frames = (frame for stack in _profiled(tables, seconds).stacks for frame in stack.frames)
    return any(each in frame for frame in frames for each in _AT_MODEL)


def with_profile(told: Diagnosis, report: Report, tables: Tables, seconds: float) -> Diagnosis:
    """The same diagnosis of a job without steps, with where it was meanwhile.  seconds: for how long none has come."""
    if told.state != "slow":
        return told
    seen = _profiled(tables, seconds)
    place = seen.deepest() if seen.stacks else None
    if place is None:
        return told
    ranks = sorted({stack.rank for stack in seen.stacks})
    of_ranks = f" of {title(ranks)}" if len(tables.agents) > 1 else ""
    whose = f"the main thread{'s' * (len(ranks) > 1)}{of_ranks} {'were' if len(ranks) > 1 else 'was'}"
    finding = Finding(
        f"No step was taken in {figure(seconds)} s: {whose} in {place} for {pct(place.share)} of the time.",
        report.ranks,
        [f"{figure(seen.seconds / len(ranks))} s of that were profiled", *report.why],
        f"probe {told.endpoint} why --seconds 300",
        where=str(place),
        effect="waits for longer, if steps are to come",
    )
    return replace(told, findings=[Cause(report.code, "none", finding)])


def _profiled(tables: Tables, seconds: float) -> Places:
    rows = tables.query(_STACKS.format(seconds=seconds)).to_pylist()
    own = frozenset(os.path.basename(row["file"]) for row in rows if not is_library(row))
    return Places([Stack(tuple(row["stack"]), row["seconds"], row["rank"]) for row in rows], own)
