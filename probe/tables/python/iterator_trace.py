"""python.iterator_trace: one row per iterator that a DataLoader made.

Made of the rows that the tap on loaders leaves, those of iterators and those of batches.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...arrays.arrow import coded, nullable
from ...arrays.integers import Bools, Ints, distinct
from ...derive.partition import Partition
from ...schema import COMMON, Column, Columns
from ...snapshot.rows import Rows
from ...streams import FAILED, ITERATOR, LOADS
from ..declaration import Table

_STREAMS = (LOADS,)


def derive(part: Partition) -> Columns:
    """Rows of the steps that may be seen."""
    every = part.rows(LOADS)
    every = every.of(np.lexsort((every["start_ns"], every["thread"], every["subject"])))
    made = np.flatnonzero(every["flags"] & ITERATOR)
    made = made[part.timeline.visible(part.timeline.step(every["start_ns"][made]), _STREAMS)]
    rows, (first_ns, taken) = every.of(made), _first_batches(every, made)
    loaders = {serial: part.log.loaders.get(serial, {}) for serial in distinct(rows["subject"]).tolist()}
    workers = pa.array([loaders[serial].get("num_workers") for serial in rows["subject"].tolist()], pa.int32())
    return {
        "start_ns": rows["start_ns"],
        "step": part.timeline.step(rows["start_ns"]),
        "in_eval": part.timeline.in_eval(rows["start_ns"], rows["thread"]),
        "loader": lambda: coded(rows["subject"], {serial: each["name"] for serial, each in loaders.items() if each}),
        "num_workers": workers,
        "start_duration": (rows["end_ns"] - rows["start_ns"]) / 1e9,
        "first_batch_duration": nullable(first_ns / 1e9, taken),
        "thread": lambda: part.native_threads(rows["thread"]),
    }


def _first_batches(every: Rows, made: Ints) -> tuple[Ints, Bools]:
    """How long the job waited for the first batch of each of these iterators, and whether it has taken one.

    every: the rows of each loader and thread together, in order of time.
    """
    following = np.minimum(made + 1, max(0, len(every) - 1))
    taken = (following > made) & (every["flags"][following] & (ITERATOR | FAILED) == 0)
    for slot in ("subject", "thread"):
        taken &= every[slot][following] == every[slot][made]
    return every["end_ns"][following] - every["start_ns"][following], taken


TABLE = Table(
    name="python.iterator_trace",
    doc="One row per iterator that a torch DataLoader made: the start of an epoch, when its workers start and the job "
    "waits for its first batch.",
    columns=(
        *COMMON,
        Column("loader", "VARCHAR", "", "What the job calls the loader; DataLoader if no variable was found.",
               "local variables, their attributes and items, globals", "", "loader of python.dataloader_trace"),
        Column("num_workers", "INTEGER", "", "Number of worker processes; 0 if the job itself makes the batches.",
               "torch's iterator", "Its record is lost."),
        Column("start_duration", "DOUBLE", "s",
               "Time in the loader's __iter__, which starts the workers unless they persist.", "host's clock"),
        Column("first_batch_duration", "DOUBLE", "s", "Time the job waited for the iterator's first batch.",
               "wait_duration of python.dataloader_trace", "It has not taken one yet."),
        Column("thread", "BIGINT", "", "Native id of the thread that made it.", "threading.get_native_id()",
               "The thread ended before it was noted.", "thread of python.dataloader_trace"),
    ),
    streams=_STREAMS,
    derive=derive,
    by_step=True,
    of_each_rank=True,
    question="How long does a loader take to start, and to its first batch?",
    example="SELECT rank, loader, num_workers, COUNT(*) AS iterators, AVG(start_duration) * 1e3 AS start_ms, "
    "AVG(first_batch_duration) * 1e3 AS first_ms FROM python.iterator_trace GROUP BY ALL ORDER BY ALL",
)  # fmt: skip
