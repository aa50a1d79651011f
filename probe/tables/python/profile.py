"""python.profile: sampled Python stacks, taken by `probe profile`."""

from __future__ import annotations

import numpy as np

from ...arrays.arrow import coded, nullable
from ...derive.partition import Partition
from ...derive.phases_at import phases_at
from ...derive.profile_stacks import ProfileStacks
from ...schema import COMMON, Column, Columns
from ...streams import COLLECTIVES, GIL_UNKNOWN, HOLDS_GIL, LOADS, PROFILE_NODES, PROFILE_SAMPLES
from ..declaration import Table


def derive(part: Partition) -> Columns:
    """All samples, those of the step that is in progress too: each is complete in itself."""
    for stream in (LOADS, COLLECTIVES):  # for the phases: a rank may leave now, and not when a column asks for them
        part.rows(stream)
    rows = part.rows(PROFILE_SAMPLES)
    stacks = ProfileStacks(rows["node"], part.rows(PROFILE_NODES), part.log.strings)
    threads, flags = part.log.threads, rows["flags"]
    main = [ident for ident, thread in threads.items() if thread.get("is_main")]
    return {
        "start_ns": rows["time_ns"],
        "step": part.timeline.step(rows["time_ns"]),
        "in_eval": part.timeline.in_eval(rows["time_ns"], rows["thread"]),
        "phase": lambda: phases_at(part, rows["time_ns"], rows["thread"]),
        "thread": nullable(rows["native_id"], rows["native_id"] > 0),
        "thread_name": lambda: coded(rows["thread"], {ident: str(each["name"]) for ident, each in threads.items()}),
        "is_main": np.isin(rows["thread"], np.array(main, np.int64)),
        "function": stacks.function,
        "file": stacks.file,
        "line": stacks.line,
        "stack": stacks.stack,
        "seconds": rows["weight_ns"] / 1e9,
        "holds_gil": nullable((flags & HOLDS_GIL) != 0, (flags & GIL_UNKNOWN) == 0),
    }


_NOT_READ = (
    "It could not be read, for the thread's frames changed while they were copied; the thread runs no Python; what its "
    "functions are has been overwritten by later profiles."
)

TABLE = Table(
    name="python.profile",
    doc="One row per thread and sample of a profile that `probe ENDPOINT profile` has taken: where the thread stood.  "
    "The stacks are read from outside, so threads are seen wherever they are, with the GIL or without, and shares are "
    "unbiased.  The rows stay until detach: of each rank, as a rule, the latest half million.",
    columns=(
        *COMMON,
        Column("phase", "VARCHAR", "", "Phase of the step, as in python.step_trace: data, forward, backward, "
               "validation, optimizer, comm, eval, other.", "spans and collectives",
               "The thread ends no steps; outside of the phases that are known in an unsampled step, or "
               "of a rank whose loader_tap or forward_tap is off."),
        Column("thread", "BIGINT", "", "Native id of the thread.", "the interpreter's thread state",
               "Python 3.10, which does not know it.", "thread of python.torch_trace, native_id of python.stack"),
        Column("thread_name", "VARCHAR", "", "Name of the thread.", "threading", "Python did not start the thread."),
        Column("is_main", "BOOLEAN", "", "Whether it is the main thread.", "threading"),
        Column("function", "VARCHAR", "",
               "Innermost function of the job's own code, outside of libraries; if there is none, the innermost "
               "(qualified name; before Python 3.11 its name).", "code", _NOT_READ),
        Column("file", "VARCHAR", "", "Source file of that function.", "code", _NOT_READ),
        Column("line", "INTEGER", "", "The line that it is executing.", "frame", _NOT_READ),
        Column("stack", "VARCHAR[]", "", "All frames, outermost first, each as `function (file:line)`; at most 400.",
               "frames", _NOT_READ),
        Column("seconds", "DOUBLE", "s", "What the sample stands for: the time since the sample before.",
               "host's clock"),
        Column("holds_gil", "BOOLEAN", "", "Whether the thread held the GIL.", "the interpreter's state",
               "It is not known where this interpreter keeps that."),
    ),
    streams=(PROFILE_SAMPLES, PROFILE_NODES),
    derive=derive,
    question="In which function is the time spent?",
    example="SELECT function, file, ROUND(SUM(seconds), 2) AS self_s FROM python.profile WHERE is_main GROUP BY ALL "
    "ORDER BY self_s DESC LIMIT 10",
)  # fmt: skip
