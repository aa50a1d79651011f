"""Rows of a table on their way to DuckDB; their columns are made only when they are asked for.

Made by probe.query.table_scan, kept by probe.query.derived_cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrays.arrow import ARROW_TYPES, table_of
from ..arrays.dtypes import Bools, Ints
from ..derive.partition import Disagreement, Partition
from ..schema import Column, Columns
from .identity_columns import identified
from .worker import Worker

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
            return {column.name: list(table_of([column], values).column(0).chunks) for column in columns}

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


def derived(part: Partition, derive: Derive) -> LazyColumns:
    """The rows of a table of one partition.  What they are derived from stays in memory as long as they do."""
    piece = LazyColumns.of(identified(part, derive(part)))
    if part.steps is None:
        return piece
    here = (piece.steps >= part.steps.start) & (piece.steps < part.steps.stop)
    return piece if here.all() else piece.take(here)


def derived_in_parts(parts: Sequence[Callable[[], Partition]], derive: Derive, worker: Worker) -> LazyColumns:
    """The rows of a table of several partitions, shared with the worker, or of a batch of ranks.

    Only columns stay in memory: what they are derived from is large, and memory that was used before is quicker than
    new memory.  Columns that are asked for later are derived again.
    """
    made: list[Ints] = []

    def work(part: Callable[[], Partition], columns: Sequence[Column]) -> tuple[Ints, list[list[Any]]]:
        partition = part()
        try:
            pieces = [derived(partition, derive)]
        except Disagreement:
            assert partition.layout is not None
            pieces = [derived(each, derive) for each in partition.layout.parts]
        chunks = [list(chain.from_iterable(piece.chunks(column) for piece in pieces)) for column in columns]
        return np.concatenate([piece.steps for piece in pieces]), chunks

    def make(columns: Sequence[Column]) -> Chunks:
        of_parts = worker.share(lambda part: work(part, columns), parts)
        made[:] = [np.concatenate([steps for steps, _ in of_parts])]
        return {
            column.name: [chunk for _, chunks in of_parts for chunk in chunks[place]]
            for place, column in enumerate(columns)
        }

    def steps() -> Ints:
        if not made:
            make([])
        return made[0]

    return LazyColumns(make, steps)
