"""probe.drops: which rows retention has dropped: streams are rings, and the oldest rows give way."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa

from ...arrays.arrow import columns_of
from ...schema import Column, Columns
from ...snapshot.snapshot import Snapshot
from ...snapshot.source import Rank, RankLeft
from ...streams import TIMES
from ..declaration import IDENTITY, MOMENT, Table, identity


def derive(job: Snapshot) -> Columns:
    """Every stream of every rank; what was recorded follows from the number of the last row."""
    rows = list[dict[str, Any]]()
    for rank in [*job.ranks]:
        with suppress(RankLeft):  # it ends just now
            rows += [_of_stream(rank, stream) for stream in sorted(rank.facts.streams)]
    return {**columns_of(TABLE.columns, rows), "oldest_time": lambda: _oldest_times(job, rows)}


def _of_stream(rank: Rank, stream: str) -> dict[str, Any]:
    capacity = rank.facts.ring_rows(stream)
    recorded = rank.recorded(stream)
    dropped = max(0, recorded - capacity)
    return {
        "_of": rank,
        **identity(rank),
        "stream": stream,
        "rows": recorded,
        "kept": recorded - dropped,
        "dropped": dropped,
        "retention_mb": capacity * len(rank.slots(stream)) * 8 / (1 << 20),
    }


def _oldest_times(job: Snapshot, rows: list[dict[str, Any]]) -> Any:
    for stream in dict.fromkeys(row["stream"] for row in rows if row["rows"] and row["stream"] in TIMES):
        job.fetch(stream, oldest=True)
    return pa.array([_oldest_us(row["_of"], row["stream"]) for row in rows], pa.int64()).cast(pa.timestamp("us"))


def _oldest_us(rank: Rank, stream: str) -> int | None:
    if stream not in TIMES:
        return None
    try:
        rows = rank.oldest_rows(stream)
    except RankLeft:
        return None
    return int(rank.wall_us(rows[TIMES[stream][0]][:1])[0]) if len(rows) else None


TABLE = Table(
    name="probe.drops",
    doc="One row per rank and stream of raw rows: how many were recorded, and how many of them retention has dropped.",
    columns=(
        *IDENTITY,
        Column("stream", "VARCHAR", "", "The stream.", "agent", joins="streams of probe.tables"),
        Column("rows", "BIGINT", "", "Rows recorded since the attach.", "number of the last row"),
        Column("kept", "BIGINT", "", "Rows that are still there.", "rows and the size of the ring"),
        Column("dropped", "BIGINT", "", "Oldest rows, overwritten by newer ones.", "rows and the size of the ring"),
        Column("oldest_time", "TIMESTAMP", "", "Time of the oldest row kept, UTC.", "its first time",
               "The stream has no rows, or no times (`profile_nodes`)."),
        Column("retention_mb", "DOUBLE", "MB", "The most the stream keeps (2^20 bytes).", "size of the ring"),
    ),
    derive_job=derive,
    final=MOMENT,
    question="How far back do the rows of each stream reach, and how many are gone?",
    example="SELECT rank, stream, kept, dropped, oldest_time FROM probe.drops ORDER BY rank, dropped DESC, stream",
)  # fmt: skip
