"""python.phase_trace: when a step was in which phase; what python.step_trace adds up."""

from __future__ import annotations

import numpy as np

from ...arrays.arrow import coded
from ...arrays.integers import Bools, Ints, distinct
from ...derive.blocking import Blocking
from ...derive.partition import Partition
from ...derive.phases import PHASES, Intervals
from ...derive.phases_at import phases_of, unrecorded
from ...schema import COMMON, Column, Columns
from ...streams import BARE, COLLECTIVES, FORWARD, LOADS, SAMPLED, SPANS, UNTIMED, WAIT
from ..declaration import Table

_STREAMS = (SPANS, LOADS, COLLECTIVES)


def derive(part: Partition) -> Columns:
    """Thread after thread, each by time."""
    timeline, blocking = part.timeline, Blocking(part)
    found, threads = Intervals(*np.zeros((3, 0), np.int64)), [np.zeros(0, np.int64)]
    for thread in distinct(timeline.boundaries["thread"]).tolist():
        pieces = phases_of(part, blocking, thread).joined().cut_at(timeline.closings.time)
        pieces = pieces.of(_known(part, pieces, thread))
        found, threads = found.plus(pieces), [*threads, np.full(len(pieces.start), thread)]
    its_thread = np.concatenate(threads)
    return {
        "start_ns": found.start,
        "step": timeline.step(found.start),
        "in_eval": timeline.in_eval(found.start, its_thread),
        "phase": lambda: coded(found.kind, {kind: name for name, kind in PHASES.items()}),
        "duration": (found.end - found.start) / 1e9,
        "thread": lambda: part.native_threads(its_thread),
    }


def _known(part: Partition, pieces: Intervals, thread: int) -> Bools:
    """Where python.step_trace knows the phase, too: the thread is the one that ended the step, and all was recorded."""
    timeline, since = part.timeline, part.rank.facts.collectives_ns
    step = timeline.step(pieces.start)
    flags = timeline.flags(step)
    calls = np.isin(pieces.kind, (FORWARD, PHASES["validation"]))
    known = timeline.visible(step, _STREAMS) & (flags & (BARE | UNTIMED) == 0) & (~calls | (flags & SAMPLED != 0))
    known &= (pieces.kind != WAIT) | (timeline.since(pieces.start) >= (since or 0))
    known &= ~np.isin(pieces.kind, [PHASES[phase] for phase in unrecorded(part.rank.facts)])
    result: Bools = known & (_threads(part, step) == thread)
    return result


def _threads(part: Partition, step: Ints) -> Ints:
    """The thread that ended each step; in an open one, that of the step before."""
    rows = part.timeline.boundaries
    place = np.searchsorted(part.timeline.base + rows["count"], step)
    return rows["thread"][np.minimum(place, len(rows) - 1)]


TABLE = Table(
    name="python.phase_trace",
    doc="One row per stretch of a step in one of its phases, on the thread that trains.  Rows do not overlap; those of "
    "a step add up to its phases in python.step_trace, where these are known.  What is in no phase has no row: "
    "other_duration.",
    columns=(
        *COMMON,
        Column("phase", "VARCHAR", "", "data, forward, backward, validation, optimizer, comm or eval, as in "
               "python.step_trace, and none that is NULL there; so forward and validation in sampled steps only.",
               "spans, collectives, batches"),
        Column("duration", "DOUBLE", "s", "How long it was in it, within this step.", "host's clock"),
        Column("thread", "BIGINT", "", "Native id of the thread.", "threading.get_native_id()",
               "The thread ended before it was noted.", "thread of python.torch_trace"),
    ),
    streams=_STREAMS,
    taps=("forward", "optimizer", "loader"),
    derive=derive,
    by_step=True,
    of_each_rank=True,
    question="How often is a step in each phase, and how long at most?",
    example="SELECT rank, phase, COUNT(*) AS times, SUM(duration) AS seconds, MAX(duration) * 1e3 AS longest_ms "
    "FROM python.phase_trace GROUP BY ALL ORDER BY ALL",
)  # fmt: skip
