"""The columns that every table of a rank's rows begins with: which rank, where and when.

Called by probe.query.table_scan and probe.query.rank_batch.
"""

from __future__ import annotations

import pyarrow as pa

from ..arrays.arrow import made, repeated
from ..schema import Columns
from ..snapshot.snapshot import Rank


def length(values: Columns) -> int:
    """How many rows a table derived of a rank has."""
    return next(len(values[name]) for name in ("step", "start_ns") if not callable(values[name]))


def with_common(raw: Rank, values: Columns) -> Columns:
    rows = length(values)
    return {
        "rank": lambda: repeated(raw.rank, rows, "INTEGER"),
        "host": lambda: repeated(raw.host, rows, "VARCHAR"),
        "pid": lambda: repeated(raw.pid, rows, "INTEGER"),
        "time": lambda: pa.array(raw.wall_us(made(values["start_ns"]))).cast(pa.timestamp("us")),
        **values,
    }
