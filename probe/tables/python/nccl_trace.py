"""python.nccl_trace: one row per collective or point-to-point operation, whatever the backend.

Made of the rows that the tap on c10d leaves, and of what torch's own recorder has from before the attach.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...arrays.arrow import stacked
from ...arrays.integers import Ints
from ...derive.collective_columns import CollectiveColumns
from ...derive.partition import Partition
from ...schema import COMMON, Column, Columns
from ...snapshot.rows import Rows
from ...streams import COLLECTIVES
from ..declaration import Table


def derive(part: Partition) -> Columns:
    """Rows of the steps that may be seen, every operation in flight, and those from before the attach."""
    from ...derive.flight_history import columns, history_of

    every = part.rows(COLLECTIVES)
    step = part.timeline.step(every["start_ns"])
    seen = (part.timeline.visible(step) & (step >= _first_whole(part, every, step))) | (every["done_ns"] == 0)
    now = CollectiveColumns(part, Rows(every.slots, every.table[seen]), step[seen]).columns()
    past = columns(part.rank, history_of(part.rank))
    start_ns = np.concatenate([past["start_ns"], now["start_ns"]])
    return {**stacked(TABLE.columns, [past, now]), "start_ns": start_ns}


def _first_whole(part: Partition, rows: Rows, step: Ints) -> int:
    """The first step whose rows are all still in the ring."""
    overwritten = len(rows) > 0 and int(rows["seq"][0]) > 1 and not part.rank.snapshot.open_steps
    return int(step[0]) + 1 if overwritten else 0


_BEFORE = "Issued before the attach."
_GROUP = "process group"
_UNKNOWN_GROUP = "The agent could not inspect the group."
_NO_TENSOR = "Barriers."

TABLE = Table(
    name="python.nccl_trace",
    doc="One row per collective or point-to-point operation of any backend (NCCL, gloo, …), from the moment it is "
    "issued; one that never ends stays in_flight.  Overlapping operations add up to work, not to wall time.",
    columns=(
        *(replace(column, null=_BEFORE) if column.name == "step" else column for column in COMMON),
        Column("seq", "BIGINT", "", "Order of issue in this process.", "number of the row", _BEFORE),
        Column("operation_type", "VARCHAR", "", "all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, "
               "scatter, all_to_all, barrier, send or recv; coalesced operations have the same names.",
               "operation of c10d", joins="operation_type of other ranks"),
        Column("backend", "VARCHAR", "", "gloo, nccl, …", _GROUP, _UNKNOWN_GROUP),
        Column("group_name", "VARCHAR", "", "torch's name of the process group, the same on all its ranks.", _GROUP,
               _UNKNOWN_GROUP, "group_name of other ranks and of probe.collectives"),
        Column("group_size", "INTEGER", "", "Ranks in the group.", _GROUP, _UNKNOWN_GROUP),
        Column("group_rank", "INTEGER", "", "This process's rank in the group.", _GROUP, _UNKNOWN_GROUP),
        Column("group_ranks", "INTEGER[]", "", "The group's members, as ranks of the job.", _GROUP,
               "The group was made without torch.distributed.", "rank"),
        Column("group_seq", "BIGINT", "", "The backend's own sequence number after the operation was issued; gloo "
               "counts point-to-point operations and monitored barriers in it too, on the ranks that take part.",
               "backend", "send, recv, monitored barriers; blocked or failed while it was issued.",
               "group_seq of other ranks, with group_name"),
        Column("peer", "INTEGER", "", "The other rank of send and recv, the root of broadcast, reduce, gather and "
               "scatter; as a rank of the job.", "arguments", "Operations between all ranks; recv from any rank.",
               "rank"),
        Column("bytes", "BIGINT", "B", "Size as nccl-tests counts it: the buffer of all_reduce, broadcast and reduce, "
               "the whole gathered or scattered buffer, the input of reduce_scatter and all_to_all; 0 for barriers.",
               "tensors"),
        Column("dtype", "VARCHAR", "", "Data type of the first tensor.", "tensors", _NO_TENSOR),
        Column("shape", "VARCHAR", "", "Shape of the first tensor that this rank contributes (a receiver: receives), "
               "and how many more there are.", "tensors", _NO_TENSOR),
        Column("async_op", "BOOLEAN", "",
               "Whether it was issued to be waited for later, as DDP and functional collectives do.", "arguments",
               "send and recv, and before torch 2.8 almost all others, for which c10d does not say; issued before the "
               "attach."),
        Column("source", "VARCHAR", "", "What issued it: ddp (its reducer, hooks and buffers), fsdp, functional "
               "(functional collectives, DTensor, compiled code), zero, pipelining, … (the part of "
               "torch.distributed), or user.", "Python frames around it", _BEFORE),
        Column("issue_us", "DOUBLE", "µs", "Time the host took to issue it.", "host's clock",
               "Blocked or failed while it was issued, or issued before the attach."),
        Column("duration_ms", "DOUBLE", "ms", "From issue to completion; on NCCL the time on the device.",
               "future of the operation, or events around it",
               "In flight, captured, end_unknown, or issued before the attach and not timed by the recorder."),
        Column("age_ms", "DOUBLE", "ms", "How long an operation in flight has been running.", "clock of the snapshot",
               "Not in flight."),
        Column("algbw_gbps", "DOUBLE", "GB/s", "bytes / duration, as nccl-tests defines it (10^9 bytes).",
               "bytes and duration_ms", "In flight, failed, barriers, no duration_ms."),
        Column("busbw_gbps", "DOUBLE", "GB/s", "algbw times the share that each link carries: 2 (n-1)/n for "
               "all_reduce, 1 for broadcast, reduce, send and recv, else (n-1)/n.", "algbw_gbps and group_size",
               "Same as algbw_gbps."),
        Column("state", "VARCHAR", "", "done, in_flight or failed; on NCCL also captured (into a CUDA graph, "
               "which replays it) and end_unknown (nobody waited for it, or only after it had ended).",
               "future of the operation, or events around it",
               "Sends and receives of a batch that was issued before the attach: the recorder does not say."),
        Column("from_flight_recorder", "BOOLEAN", "", "Whether it was issued before the attach and comes from torch's "
               "own recorder (TORCH_FR_BUFFER_SIZE, 2,000 operations), which is read as long as no step has ended "
               "since, as in a job that hangs.  The recorder has no steps and no sources; gloo's has no send and "
               "recv, no durations, and records a reduce_scatter as an all_reduce.", "torch's Flight Recorder"),
    ),
    streams=(COLLECTIVES,),
    derive=derive,
    by_step=True,
    question="What does each step send, in how many operations, and how fast?",
    example="SELECT rank, step, operation_type, COUNT(*) AS n, SUM(bytes) / 1e6 AS mb, AVG(busbw_gbps) AS busbw FROM "
    "python.nccl_trace GROUP BY ALL ORDER BY step DESC, rank, mb DESC LIMIT 10",
)  # fmt: skip
