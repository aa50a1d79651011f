"""probe.evals: who ran which snippet in the job, when, and what it changed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...arrays.arrow import columns_of, nullable
from ...derive.partition import Partition
from ...schema import Column, Columns
from ..declaration import DONE, IDENTITY, Table

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
    ids, done = sorted(part.log.evals), part.log.evals_done
    ran = np.array([{"start_ns", "end_ns"} <= done.get(id, {}).keys() for id in ids], np.bool_)
    start, end = (
        np.array([done[id][slot] if has_run else 0 for id, has_run in zip(ids, ran, strict=True)], np.int64)
        for slot in ("start_ns", "end_ns")
    )
    return {
        "time": nullable(part.rank.wall_us(start), ran).cast(pa.timestamp("us")),
        "start_ns": nullable(start, ran),
        "step": nullable(part.timeline.step(start), ran),
        "duration": nullable((end - start) / 1e9, ran),
        **columns_of(_ASKED, [part.log.evals[id] for id in ids]),
        **columns_of(_ENDED, [done.get(id, {}) for id in ids]),
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
    derive=derive,
    final=DONE,
    question="Who ran what in the job, and did it work?",
    example='SELECT time, rank, "by", code, ok, error FROM probe.evals ORDER BY time, rank',
)  # fmt: skip
