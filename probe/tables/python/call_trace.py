"""python.call_trace: the calls of single functions, recorded by `probe trace`."""

from __future__ import annotations

from dataclasses import replace

from ...arrays.arrow import coded, nullable
from ...derive.partition import Partition
from ...schema import COMMON, Column, Columns
from ...streams import CALLS, FAILED
from ..declaration import DONE, Table

_UNKNOWN = "It began before the oldest step that was known when the row was read or recorded."


def derive(part: Partition) -> Columns:
    """All calls that are over, those of the step that is in progress too: each is complete in itself."""
    rows = part.rows(CALLS)
    return {
        "start_ns": rows["start_ns"],
        "step": nullable(part.timeline.step(rows["start_ns"]), part.timeline.reaches(rows["start_ns"])),
        "in_eval": part.timeline.in_eval(rows["start_ns"], rows["thread"]),
        "function": lambda: coded(rows["function"], part.log.strings),
        "duration": (rows["end_ns"] - rows["start_ns"]) / 1e9,
        "queued": nullable(rows["queued_ns"] / 1e9, rows["queued_ns"] >= 0),
        "size": nullable(rows["size"], rows["size"] >= 0),
        "thread": lambda: part.native_threads(rows["thread"]),
        "failed": (rows["flags"] & FAILED) != 0,
    }


TABLE = Table(
    name="python.call_trace",
    doc="One row per call of a function that `probe ENDPOINT trace` traces, once the call is over.  Calls that had "
    "begun before are not recorded.  The rows stay until detach: of each rank, as a rule, the latest half million.",
    columns=(
        *(replace(column, null=_UNKNOWN) if column.name == "step" else column for column in COMMON),
        Column("function", "VARCHAR", "", "The function, as `module:qualname`.", "function object"),
        Column("duration", "DOUBLE", "s", "Time from its beginning to its end.  Of an async function: to the end of "
               "awaiting it, with all that ran meanwhile; of a generator: from its first item to its end, with what "
               "its user did in between.", "host's clock"),
        Column("queued", "DOUBLE", "s", "Time from the time stamp that --since names to the beginning.",
               "host's clocks, argument of the call",
               "Without --since; nothing of that name holds a float; it is not near to now by time(), monotonic() or "
               "perf_counter()."),
        Column("size", "BIGINT", "", "Size of its first argument, in a method of the one after self: elements of a "
               "list, tuple, dict, set or tensor, characters of a str, bytes.", "argument of the call",
               "It has none, or is of another type."),
        Column("thread", "BIGINT", "", "Native id of the thread on which it began.", "threading.get_native_id()",
               "The thread ended before it was noted.", "thread of python.torch_trace, native_id of python.stack"),
        Column("failed", "BOOLEAN", "", "Whether it raised, or was cancelled while it was awaited.", "exceptions"),
    ),
    streams=(CALLS,),
    derive=derive,
    of_each_rank=True,
    final=DONE,
    question="How long do requests take, and how long do they wait before?",
    example="SELECT function, COUNT(*) AS calls, quantile_cont(duration, [0.5, 0.9, 0.99]) AS service_s, "
    "quantile_cont(queued, [0.5, 0.9, 0.99]) AS waiting_s FROM python.call_trace GROUP BY ALL",
)  # fmt: skip
