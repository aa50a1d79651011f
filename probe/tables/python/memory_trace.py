"""python.memory_trace: one row per second and memory: what the process and its devices' allocators hold."""

from __future__ import annotations

import numpy as np

from ... import streams
from ...arrays.arrow import coded, stacked
from ...derive.partition import Partition
from ...derive.samples import Samples, common
from ...schema import COMMON, Column, Columns
from ...streams import SAMPLES
from ..declaration import DONE, Table

_MB = 1 << 20
_OF_HOST = {"rss_mb": streams.HOST_RSS, "shared_mb": streams.HOST_SHARED, "pss_mb": streams.HOST_PSS,
            "pinned_mb": streams.HOST_PINNED}  # fmt: skip
_OF_DEVICE = {"allocated_mb": streams.DEVICE_ALLOCATED, "reserved_mb": streams.DEVICE_RESERVED,
              "inactive_mb": streams.DEVICE_INACTIVE, "peak_mb": streams.DEVICE_PEAK}  # fmt: skip


def derive(part: Partition) -> Columns:
    """The host's rows, then device after device, each by time."""
    sources = part.rows(SAMPLES)["source"]
    found = [streams.MEMORY, *sorted({int(each) for each in np.unique(sources) if _is_allocator(each)}, reverse=True)]
    parts = [_rows_of(part, source) for source in found]
    own = [column for column in TABLE.columns if column.name not in ("rank", "host", "pid", "time")]
    return {**stacked(own, parts), "start_ns": np.concatenate([each["start_ns"] for each in parts])}


def _is_allocator(source: int) -> bool:
    return streams.ALLOCATORS_END <= source < streams.MEMORY


def _rows_of(part: Partition, source: int) -> Columns:
    samples = Samples(part, source)
    device = "cpu" if source == streams.MEMORY else f"cuda:{streams.MEMORY - 1 - source}"
    numbers = np.zeros(len(samples.times), np.int64)
    return {
        **common(part, samples.times),
        "device": coded(numbers, {0: device}),
        **{name: (samples.level(each) * (1 / _MB)).arrow() for name, each in {**_OF_HOST, **_OF_DEVICE}.items()},
    }


_HOST, _DEVICE = "A row of a device.", "The row of the host."

TABLE = Table(
    name="python.memory_trace",
    doc="One row per rank, second and memory: the host's, and that of each device which the process uses, as torch's "
    "caching allocator reports it; a custom allocator reports nothing.  MB are 2^20 bytes.",
    columns=(
        *COMMON,
        Column("device", "VARCHAR", "", "`cpu` for the host, else the device: `cuda:0`.", "torch"),
        Column("rss_mb", "DOUBLE", "MB", "Resident memory of the process.", "/proc/self/statm", _HOST),
        Column("shared_mb", "DOUBLE", "MB", "Thereof pages of files and shared memory, as of loaders' batches.",
               "/proc/self/statm", _HOST),
        Column("pss_mb", "DOUBLE", "MB", "Resident memory, a page that n processes share counted as 1/n.",
               "/proc/self/smaps_rollup", "A row of a device; reading it again would take more than a thousandth of "
               "the time; more than 16 GB are resident; the file cannot be read."),
        Column("pinned_mb", "DOUBLE", "MB", "Host memory that torch has pinned for devices.",
               "torch's host allocator", "A row of a device; the process uses none; torch before 2.8."),
        Column("allocated_mb", "DOUBLE", "MB", "Given out to tensors.", "torch's caching allocator", _DEVICE),
        Column("reserved_mb", "DOUBLE", "MB", "Taken from the device, given out or not.", "torch's caching allocator",
               _DEVICE),
        Column("inactive_mb", "DOUBLE", "MB", "Free parts of blocks that are given out in part: what is lost to "
               "fragmentation at this moment.", "torch's caching allocator", _DEVICE),
        Column("peak_mb", "DOUBLE", "MB", "The most that was given out at once, since the start or since the job last "
               "called reset_peak_memory_stats(): a job that does so each step has the peak of the step.",
               "torch's caching allocator", _DEVICE),
    ),
    streams=(SAMPLES,),
    derive=derive,
    of_each_rank=True,
    final=DONE,
    taps=("memory",),
    question="Does the memory of a rank grow?",
    example="SELECT rank, device, MIN(rss_mb) AS least, MAX(rss_mb) AS most, MAX(allocated_mb) AS allocated_mb "
    "FROM python.memory_trace GROUP BY ALL ORDER BY rank, device",
)  # fmt: skip
