"""Rows of a table on their way to DuckDB, with the columns that say which rank, where and when.

Made by probe.query.table_scan, kept by probe.query.derived_cache.  Invariant: a column is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrays.arrow import ARROW_TYPES, array_of, choice, made, repeated
from ..arrays.integers import Bools, Ints
from ..derive.partition import Layout, Partition
from ..schema import Column, Columns
from .duckdb_session import Worker

Chunks = dict[str, list[Any]]  # by column
Derive = Callable[[Partition], Columns]


class LazyColumns:
    """Some rows of one table.  make: gives the chunks of columns, called once for each; steps: of each row."""

    def __init__(self, make: Callable[[Sequence[Column]], Chunks], steps: Callable[[], Ints]) -> None:
        self._make, self._steps = make, steps
        self._made: Chunks = {}

    @classmethod
    def of(cls, values: Columns) -> LazyColumns:
        """Rows whose columns can be made one by one."""

        def make(columns: Sequence[Column]) -> Chunks:
            return {column.name: _chunks(array_of(column, values)) for column in columns}

        return cls(make, lambda: values["step"])

    @property
    def steps(self) -> Ints:
        """Of each row; only of a table that is derived rank by rank."""
        return self._steps()

    def have(self, columns: Iterable[Column]) -> None:
        """Make those of these columns that are missing, together: that may be less work than one by one."""
        missing = [column for column in columns if column.name not in self._made]
        if missing:
            self._made |= self._make(missing)

    def chunks(self, column: Column) -> list[Any]:
        self.have([column])
        return self._made[column.name]

    def joined(self, column: Column) -> Any:
        """The column as one array."""
        chunks = self.chunks(column)
        if len(chunks) != 1:
            chunks[:] = [pa.chunked_array(chunks, ARROW_TYPES[column.type]).combine_chunks()]
        return chunks[0]

    def take(self, rows: Ints | Bools) -> LazyColumns:
        """The chosen rows."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else np.asarray(rows, np.int64)

        def make(columns: Sequence[Column]) -> Chunks:
            self.have(columns)
            return {column.name: [self.joined(column).take(pa.array(chosen))] for column in columns}

        return LazyColumns(make, lambda: self.steps[chosen])


def _chunks(array: Any) -> list[Any]:
    return list(array.chunks) if isinstance(array, pa.ChunkedArray) else [array]


def derived(part: Partition, derive: Derive) -> LazyColumns:
    """The rows of a table of one partition.  What they are derived from stays in memory as long as they do."""
    piece = LazyColumns.of(identified(part, derive(part)))
    if part.steps is None:
        return piece
    here = (piece.steps >= part.steps.start) & (piece.steps < part.steps.stop)
    return piece if here.all() else piece.take(here)


def derived_each(parts: Iterable[Partition], derive: Derive) -> list[LazyColumns]:
    return [derived(part, derive) for part in parts]


def derived_in_parts(parts: Sequence[Callable[[], Sequence[LazyColumns]]], worker: Worker) -> LazyColumns:
    """The rows of a table that some calls derive, which the worker shares if there are several.

    Only columns stay in memory: what they are derived from is large, and memory that was used before is quicker than
    new memory.  Columns that are asked for later are derived again.
    """
    derived_steps: list[Ints] = []

    def work(part: Callable[[], Sequence[LazyColumns]], columns: Sequence[Column]) -> tuple[Ints, list[list[Any]]]:
        pieces = part()
        chunks = [list(chain.from_iterable(piece.chunks(column) for piece in pieces)) for column in columns]
        return np.concatenate([piece.steps for piece in pieces]), chunks

    def make(columns: Sequence[Column]) -> Chunks:
        of_parts = worker.share(lambda part: work(part, columns), parts)
        derived_steps[:] = [np.concatenate([steps for steps, _ in of_parts])]
        return {
            column.name: [chunk for _, chunks in of_parts for chunk in chunks[place]]
            for place, column in enumerate(columns)
        }

    def steps() -> Ints:
        if not derived_steps:
            make([])
        return derived_steps[0]

    return LazyColumns(make, steps)


def identified(part: Partition, values: Columns) -> Columns:
    """The columns that a table derived, with rank, host, pid and time before them."""
    if part.layout is not None:
        return _of_ranks(part.layout, values)
    rank = part.rank
    rows = next(len(values[name]) for name in ("step", "start_ns") if not callable(values[name]))
    return {
        "rank": lambda: repeated(rank.rank, rows, "INTEGER"),
        "host": lambda: repeated(rank.host, rows, "VARCHAR"),
        "pid": lambda: repeated(rank.pid, rows, "INTEGER"),
        "time": lambda: pa.array(rank.wall_us(made(values["start_ns"]))).cast(pa.timestamp("us")),
        **values,
    }


def _of_ranks(layout: Layout, values: Columns) -> Columns:
    """The same for several ranks; step and start_ns become those of each rank again."""
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
