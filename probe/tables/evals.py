"""probe.evals: who ran which snippet in the job, when, and what it changed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..arrays.arrow import columns_of, nullable
from ..derive.partition import Partition
from ..schema import Column, Columns
from ..streams import EVAL, KIND_MASK, SPANS
from .declaration import IDENTITY, Table

_NOT_RUN = "It has not run yet, or is still running."
_ASKED = (
    Column("by", "VARCHAR", "", "Who asked for it.", "reader"),
    Column("where", "VARCHAR", "", "boundary (between two steps) or now (while the training goes on).", "reader"),
    Column("ranks", "INTEGER[]", "", "The ranks it was sent to.", "reader", "It was sent to all ranks."),
    Column("code", "VARCHAR", "", "The snippet.", "reader"),
)
_ENDED = (
    Column("ok", "BOOLEAN", "", "Whether it ended without an exception.", "agent", _NOT_RUN),
    Column("error", "VARCHAR", "", "The exception it raised.", "agent", "It raised none."),
    Column(
        "changed",
        "VARCHAR[]",
        "",
        "Variables of the job that it rebound, and what it assigned to in place outside loops and conditions.",
        "agent",
        _NOT_RUN,
    ),
)


def derive(part: Partition) -> Columns:
    spans = part.rows(SPANS)
    place = {int(spans["subject"][row]): row for row in np.flatnonzero((spans["flags"] & KIND_MASK) == EVAL)}
    ids = sorted(part.log.evals)
    ran = np.array([id in place for id in ids], np.bool_)
    rows = np.array([place.get(id, -1) for id in ids], np.int64)[ran]
    start, end = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    start[ran], end[ran] = spans["start_ns"][rows], spans["end_ns"][rows]
    return {
        "time": nullable(part.rank.wall_us(start), ran).cast(pa.timestamp("us")),
        "start_ns": nullable(start, ran),
        "step": nullable(part.timeline.step(start), ran),
        "duration": nullable((end - start) / 1e9, ran),
        **columns_of(_ASKED, [part.log.evals[id] for id in ids]),
        **columns_of(_ENDED, [part.log.evals_done.get(id, {}) for id in ids]),
    }


TABLE = Table(
    name="probe.evals",
    doc="One row per snippet and rank: who ran what, when, and what it changed.",
    columns=(
        *IDENTITY,
        Column("time", "TIMESTAMP", "", "Wall clock of the start, UTC.", "start_ns and a pair of clock readings",
               _NOT_RUN),
        Column("start_ns", "BIGINT", "ns", "Start on the host's monotonic clock.", "CLOCK_MONOTONIC", _NOT_RUN),
        Column("step", "BIGINT", "", "The job's step that was about to begin.", "boundaries", _NOT_RUN,
               "step everywhere"),
        Column("duration", "DOUBLE", "s", "How long it ran; at a boundary, how long the training was held.",
               "host's clock", _NOT_RUN),
        *_ASKED,
        *_ENDED,
    ),
    streams=(SPANS,),
    derive=derive,
    question="Who ran what in the job, and did it work?",
    example='SELECT time, rank, "by", code, ok, error FROM probe.evals ORDER BY time, rank',
)  # fmt: skip
