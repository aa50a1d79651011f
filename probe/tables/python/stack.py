"""python.stack: where every thread of the job stands at this moment, a row a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...arrays.arrow import columns_of
from ...schema import Column, Columns
from ...snapshot.snapshot import Snapshot
from ...snapshot.source import Rank
from ..declaration import IDENTITY, NEVER, Table, identity

if TYPE_CHECKING:
    from ...snapshot.stacks import Thread


def derive(job: Snapshot) -> Columns:
    rows = [row for rank, threads in job.stacks().items() for thread in threads for row in _of_thread(rank, thread)]
    return columns_of(TABLE.columns, rows)


def _of_thread(rank: Rank, thread: Thread) -> list[dict[str, Any]]:
    shared = {
        **identity(rank),
        "thread": thread.ident,
        "native_id": thread.native_id,
        "thread_name": thread.name,
        "is_main": thread.is_main,
        "holds_gil": thread.holds_gil,
    }
    return [
        shared | {"depth": depth, "function": frame.function, "file": frame.file, "line": frame.line}
        for depth, frame in enumerate(thread.frames)
    ]


TABLE = Table(
    name="python.stack",
    doc="One row per Python frame of every thread, at the moment of the query, without the agent's own thread.  Stacks "
    "are read from outside, on the rank's host, so no GIL is needed.  A rank on this host that is stopped or does not "
    "answer has rows, too; one elsewhere only in `probe ENDPOINT stack`, which shows the same, folded.",
    columns=(
        *IDENTITY,
        Column("thread", "BIGINT", "", "The thread's identifier in Python.", "interpreter"),
        Column("native_id", "BIGINT", "", "The kernel's id of the thread.", "threading",
               "Python did not start the thread.", "thread of python.torch_trace"),
        Column("thread_name", "VARCHAR", "", "Name of the thread.", "threading", "Python did not start the thread."),
        Column("is_main", "BOOLEAN", "", "Whether it is the main thread.", "threading"),
        Column("holds_gil", "BOOLEAN", "", "Whether it held the GIL.", "the interpreter's state",
               "It is not known where this interpreter keeps that."),
        Column("depth", "INTEGER", "", "0 is the innermost frame; at most 200 frames per thread.", "frames"),
        Column("function", "VARCHAR", "", "Qualified name of the function (before Python 3.11 its name).", "code"),
        Column("file", "VARCHAR", "", "Source file of the function.", "code"),
        Column("line", "INTEGER", "", "The line that it is executing.", "frame"),
    ),
    derive_job=derive,
    final=NEVER,
    question="Where does the main thread of each rank stand?",
    example="SELECT rank, function, file, line FROM python.stack WHERE is_main AND depth < 3 ORDER BY rank, depth",
)  # fmt: skip
