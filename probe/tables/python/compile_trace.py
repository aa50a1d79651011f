"""python.compile_trace: what torch.compile compiled, how long that took, and why it did so again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...arrays.arrow import columns_of, nullable
from ...derive.partition import Partition
from ...schema import COMMON, Column, Columns
from ..declaration import DONE, Table

_OLD = "Torch does not say it."
_OWN = (
    Column("function", "VARCHAR", "", "The function that was compiled.", "dynamo", _OLD),
    Column("file", "VARCHAR", "", "Its source file.", "dynamo", _OLD),
    Column("line", "INTEGER", "", "The line where it begins.", "dynamo", _OLD),
    Column("reason", "VARCHAR", "", "Why it was compiled again: the guard that failed, as dynamo says it.", "dynamo",
           "It was not compiled before, or torch does not say it."),
    Column("recompile", "BOOLEAN", "", "Whether the function had been compiled before.", "dynamo", _OLD),
    Column("backward", "BOOLEAN", "", "Whether it is its backward pass, compiled when that first runs.", "dynamo"),
    Column("failed", "BOOLEAN", "", "Whether it failed, so that the function runs uncompiled.", "dynamo"),
)  # fmt: skip


def derive(part: Partition) -> Columns:
    known = sorted(part.log.compilations.items())
    records = [record for _, record in known if {"start_ns", "duration_ns"} <= record.keys()]
    start = np.array([record["start_ns"] for record in records], np.int64)
    in_eval = part.timeline.in_eval(start) if part.log.evals else np.zeros(len(start), np.bool_)
    return {
        "start_ns": start,
        "step": nullable(part.timeline.step(start), start >= part.rank.facts.attached_ns),
        "in_eval": in_eval,
        "duration": pa.array([record["duration_ns"] / 1e9 for record in records], pa.float64()),
        **columns_of(_OWN, records),
    }


TABLE = Table(
    name="python.compile_trace",
    doc="One row per compilation by torch.compile, within a second of its end, and for the last 64 that were over "
    "before the attach.  The training waits while one runs.  Of more than 64 within a second the last 64 are here.",
    columns=(
        *COMMON[:5],
        Column("step", "BIGINT", "", "The job's step in which it began.", "boundaries", "It began before the attach.",
               "step everywhere"),
        COMMON[6],
        Column("duration", "DOUBLE", "s", "How long it took.", "dynamo"),
        *_OWN,
    ),
    derive=derive,
    final=DONE,
    taps=("compile",),
    question="What was compiled again and again, and why?",
    example="SELECT rank, function, COUNT(*) AS times, ROUND(SUM(duration), 3) AS seconds, MAX(reason) AS for_instance "
    "FROM python.compile_trace WHERE recompile GROUP BY ALL ORDER BY seconds DESC",
)  # fmt: skip
