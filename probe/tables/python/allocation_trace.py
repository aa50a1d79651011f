"""python.allocation_trace: what torch's CUDA allocators did, one thing a row, as `probe memory --history` recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import protocol as wire
from ...arrays.arrow import columns_of
from ...schema import COMMON, Column, Columns
from ...snapshot.snapshot import Snapshot
from ...snapshot.source import Rank
from ...streams import SPANS, STEPS
from ..declaration import MOMENT, Table, identity


def derive(job: Snapshot) -> Columns:
    answers = job.ask(wire.HISTORY)
    here = job.ranks_with(STEPS, SPANS) if answers else []  # for steps and evals: a rank may end meanwhile
    rows = [row for rank in here if rank in answers for row in _of_rank(rank, answers[rank])]
    return columns_of(TABLE.columns, rows)


def _of_rank(rank: Rank, past: Mapping[str, Any]) -> list[dict[str, Any]]:
    from ...memory.allocations import allocations, snapshot_of

    found = list(allocations(snapshot_of(past["packed"]), past["wall_offset_ns"]))
    times = np.array([each.start_ns for each in found], np.int64)
    moments = rank.wall_us(times), rank.timeline.step(times), rank.timeline.in_eval(times)
    return [
        {
            **identity(rank), "time": time, "step": step, "in_eval": in_eval, **vars(each),
            "stack": [str(frame) for frame in reversed(each.frames)] or None,
            **({} if each.innermost is None else vars(each.innermost)),
        }
        for each, time, step, in_eval in zip(found, *(values.tolist() for values in moments), strict=True)
    ]  # fmt: skip


_NO_STACK = "The history was recorded without stacks; threads without Python, such as autograd's, have none"

TABLE = Table(
    name="python.allocation_trace",
    doc="One row per thing that torch's caching allocator on a CUDA device did while `probe ENDPOINT memory --history` "
    "had its history recorded, as torch tells it.  The rows of the last history stay until detach.  To add up bytes, "
    "choose an action.",
    columns=(
        *COMMON,
        Column("device", "VARCHAR", "", "The device: `cuda:0`.", "torch"),
        Column("action", "VARCHAR", "", "alloc (given out), free_requested (nobody refers to it any more), "
               "free_completed (no stream uses it either: it can be given out again), segment_alloc and segment_free "
               "(taken from the device, or given back), segment_map and segment_unmap (likewise, in an expandable "
               "segment), oom (there was not enough).", "torch's caching allocator"),
        Column("bytes", "BIGINT", "B", "Those asked for; of a segment its size.", "torch's caching allocator"),
        Column("duration", "DOUBLE", "s", "How long an alloc was given out, until free_requested.",
               "the next free_requested of this address", "It was not freed meanwhile; other actions."),
        Column("address", "VARCHAR", "", "Where it lies.", "torch's caching allocator", "An oom.",
               "storage of python.tensor_trace"),
        Column("stream", "BIGINT", "", "Handle of the CUDA stream; 0 is the default one.", "torch's caching allocator"),
        Column("function", "VARCHAR", "", "Innermost function of the stack that is not a library's; of a stack of "
               "libraries alone the innermost.", "torch's traceback", f"{_NO_STACK}."),
        Column("file", "VARCHAR", "", "Source file of that function.", "torch's traceback", f"{_NO_STACK}."),
        Column("line", "INTEGER", "", "Line of that function.", "torch's traceback", f"{_NO_STACK}."),
        Column("stack", "VARCHAR[]", "", "Its frames, outermost first: `function (file:line)`.", "torch's traceback",
               f"{_NO_STACK}."),
    ),
    derive_job=derive,
    final=MOMENT,
    question="Which lines allocate the memory that stays?",
    example="SELECT function, file, line, COUNT(*) AS allocations, SUM(bytes) AS bytes FROM python.allocation_trace "
    "WHERE action = 'alloc' AND duration IS NULL GROUP BY ALL ORDER BY bytes DESC LIMIT 20",
)  # fmt: skip
