"""python.dataloader_trace: one row per batch taken from a DataLoader.

Made of the rows that the tap on its iterators leaves; what a loader is comes from the log.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ...arrays.arrow import coded, nullable
from ...derive.partition import Partition
from ...schema import COMMON, Column, Columns
from ...streams import FAILED, ITERATOR, LOADS
from ..declaration import Table

_STREAMS = (LOADS,)


def derive(part: Partition) -> Columns:
    """Rows of the steps that may be seen."""
    every = part.rows(LOADS)
    every = every.of(every["flags"] & ITERATOR == 0)
    step = part.timeline.step(every["start_ns"])
    seen = part.timeline.visible(step, _STREAMS)
    rows, loaders = every.of(seen), part.log.loaders
    met, place = np.unique(rows["subject"], return_inverse=True)

    def told(key: str, type: Any) -> Any:
        values = pa.array([loaders.get(serial, {}).get(key) for serial in met.tolist()], type)
        return values.take(pa.array(place.reshape(-1)))

    return {
        "start_ns": rows["start_ns"],
        "step": step[seen],
        "in_eval": part.timeline.in_eval(rows["start_ns"], rows["thread"]),
        "loader": lambda: coded(rows["subject"], {serial: str(each["name"]) for serial, each in loaders.items()}),
        "wait_duration": (rows["end_ns"] - rows["start_ns"]) / 1e9,
        "num_workers": lambda: told("num_workers", pa.int32()),
        "ready": lambda: nullable(rows["ready"], rows["ready"] >= 0),
        "outstanding": lambda: nullable(rows["outstanding"], rows["outstanding"] >= 0),
        "pin_memory": lambda: told("pin_memory", pa.bool_()),
        "prefetch_factor": lambda: told("prefetch_factor", pa.int32()),
        "batch_size": lambda: told("batch_size", pa.int64()),
        "thread": lambda: part.native_threads(rows["thread"]),
        "failed": (rows["flags"] & FAILED) != 0,
    }


_ITERATOR = "torch's iterator"
_NO_WORKERS = "The loader has no workers."

TABLE = Table(
    name="python.dataloader_trace",
    doc="One row per batch taken from a torch DataLoader.  Loaders that do not use torch's, and what happens inside "
    "worker processes, are not recorded; nor are batches of the `bare` steps of probe.overhead.",
    columns=(
        *COMMON,
        Column("loader", "VARCHAR", "",
               "The job's variable that holds the loader or its iterator, or what its trainer calls it; DataLoader if "
               "none was found.", "local variables, their attributes and items, globals", "",
               "loader of python.iterator_trace"),
        Column("wait_duration", "DOUBLE", "s", "Time the job waited for the batch.", "host's clock"),
        Column("num_workers", "INTEGER", "", "Number of worker processes; 0 if the job itself makes the batches.",
               _ITERATOR),
        Column("ready", "INTEGER", "", "Batches that were ready when this one was requested; with an IterableDataset, "
               "a worker's end counts as one.", _ITERATOR, _NO_WORKERS),
        Column("outstanding", "INTEGER", "",
               "Batches requested from the workers that the job had not taken yet, including the ready ones.",
               _ITERATOR, _NO_WORKERS),
        Column("pin_memory", "BOOLEAN", "", "Whether batches are copied to pinned memory.", _ITERATOR),
        Column("prefetch_factor", "INTEGER", "", "Batches requested from each worker in advance.", _ITERATOR,
               _NO_WORKERS),
        Column("batch_size", "BIGINT", "", "Samples per batch, as configured in the loader.", "batch sampler",
               "Its batch sampler does not say, or the loader does not batch."),
        Column("thread", "BIGINT", "", "Native id of the thread that took it.", "threading.get_native_id()",
               "The thread ended before it was noted.", "thread of python.torch_trace, native_id of python.stack"),
        Column("failed", "BOOLEAN", "", "Whether the loader raised instead; the end of an epoch gives no row.",
               "exceptions"),
    ),
    streams=_STREAMS,
    derive=derive,
    by_step=True,
    of_each_rank=True,
    question="How long does the job wait for a batch, and how many are ready when it requests one?",
    example="SELECT rank, loader, COUNT(*) AS batches, AVG(wait_duration) * 1e3 AS avg_ms, MAX(wait_duration) * 1e3 "
    "AS max_ms, AVG(ready) AS ready FROM python.dataloader_trace GROUP BY ALL ORDER BY ALL",
)  # fmt: skip
