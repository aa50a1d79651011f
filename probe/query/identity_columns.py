"""The columns that every table of a rank's rows begins with: which rank, where and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ..arrays.arrow import choice, made, repeated
from ..arrays.dtypes import Ints
from ..derive.partition import Layout, Partition
from ..schema import Columns


def identified(part: Partition, values: Columns) -> Columns:
    """The columns that a table derived, with rank, host, pid and time before them."""
    if part.layout is not None:
        return _by_rank(part.layout, values)
    rank = part.rank
    rows = next(len(values[name]) for name in ("step", "start_ns") if not callable(values[name]))
    return {
        "rank": lambda: repeated(rank.rank, rows, "INTEGER"),
        "host": lambda: repeated(rank.host, rows, "VARCHAR"),
        "pid": lambda: repeated(rank.pid, rows, "INTEGER"),
        "time": lambda: pa.array(rank.wall_us(made(values["start_ns"]))).cast(pa.timestamp("us")),
        **values,
    }


def _by_rank(layout: Layout, values: Columns) -> Columns:
    """Of several ranks; step and start_ns become those of each rank again."""
    ranks = [part.rank for part in layout.parts]
    owner, step = layout.split(values["step"])

    def start_ns() -> Ints:
        return made(values["start_ns"]) - layout.shift_ns[owner]  # type: ignore[no-any-return]

    def host() -> Any:
        names = list(dict.fromkeys(rank.host for rank in ranks))
        return choice(np.array([names.index(rank.host) for rank in ranks])[owner], names)

    def time() -> Any:
        offset = np.array([rank.facts.wall_offset_ns for rank in ranks])
        return pa.array((start_ns() + offset[owner]) // 1000).cast(pa.timestamp("us"))

    return {
        "rank": lambda: np.array([rank.rank for rank in ranks], np.int64)[owner],
        "host": host,
        "pid": lambda: np.array([rank.pid for rank in ranks], np.int64)[owner],
        "time": time,
        **values,
        "start_ns": start_ns,
        "step": step,
    }
