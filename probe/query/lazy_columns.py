"""Rows of a table on their way to DuckDB, whose columns are made only when they are asked for.

Made by probe.query.table_scan, kept by probe.query.derived_cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrays.arrow import ARROW_TYPES, table_of
from ..arrays.dtypes import Bools, Ints
from ..schema import Column, Columns

Chunks = dict[str, list[Any]]  # of each column


class LazyColumns:
    """Rows of one table, of a rank or of all; a column is made when it is asked for, once."""

    def __init__(self, values: Columns) -> None:
        self._values = values
        self._made: Chunks = {}

    @property
    def steps(self) -> Ints:
        """Of each row."""
        found: Ints = self._values["step"]
        return found

    def have(self, columns: Sequence[Column]) -> None:
        """These will be asked for: where that is less work than one by one, they are made now."""

    def chunks(self, column: Column) -> list[Any]:
        if column.name not in self._made:
            self._made[column.name] = self._make(column)
        return self._made[column.name]

    def _make(self, column: Column) -> list[Any]:
        return list(table_of([column], self._values).column(0).chunks)

    def joined(self, column: Column) -> Any:
        """In one array."""
        chunks = self.chunks(column)
        if len(chunks) != 1:
            chunks[:] = [pa.chunked_array(chunks, ARROW_TYPES[column.type]).combine_chunks()]
        return chunks[0]

    def of(self, rows: Ints | Bools) -> LazyColumns:
        """The chosen rows."""
        return _Some(self, np.arange(len(rows))[rows] if rows.dtype == np.bool_ else np.asarray(rows, np.int64))


class _Some(LazyColumns):
    def __init__(self, whole: LazyColumns, rows: Ints) -> None:
        super().__init__({})
        self._whole, self._rows = whole, rows

    @property
    def steps(self) -> Ints:
        return self._whole.steps[self._rows]

    def have(self, columns: Sequence[Column]) -> None:
        self._whole.have([column for column in columns if column.name not in self._made])

    def _make(self, column: Column) -> list[Any]:
        return [self._whole.joined(column).take(pa.array(self._rows))]


class Made(LazyColumns):
    """Only columns are kept: what they are made of is large, and memory that was used before is quicker than new."""

    def __init__(self, make: Callable[[Sequence[Column]], Chunks]) -> None:
        super().__init__({})
        self._make_all = make

    def have(self, columns: Sequence[Column]) -> None:
        missing = [column for column in columns if column.name not in self._made]
        if missing:
            self._made |= self._make_all(missing)

    def _make(self, column: Column) -> list[Any]:
        return self._make_all([column])[column.name]
