"""What a query's filter can let through, by Arrow's own reasoning: which columns, ranks and steps it is about.

Called by probe.query.table_scan.  Invariant: only what the filter provably refuses is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from ..arrays.arrow import ARROW_TYPES
from ..tables import TABLES

_EXACT = 16  # of the newest steps each is told from the next, of older ones ever more are taken together
_GROWTH = 1.5


class Filter:
    """The filter that DuckDB passes to a table, an Arrow expression; None lets everything through."""

    def __init__(self, expression: Any) -> None:
        self._expression = expression
        self._text = "" if expression is None else str(expression)

    def names(self, column: str) -> bool:
        """Whether it may name this column: it does, or one whose name contains this one's."""
        return column in self._text

    def possible_ranks(self, ranks: Sequence[int]) -> set[int]:
        """The ranks of which a row may pass."""
        if not self.names("rank"):
            return set(ranks)
        known = sorted(set(ranks))
        return {known[place] for place in self._possible([ds.field("rank") == rank for rank in known])}

    def first_step(self, last: int) -> int | None:
        """No row of an earlier step can pass: None where every step can, a step behind all where none can.

        last: the newest step that is known.  Of steps long ago the answer may be too early.
        """
        if not self.names("step"):
            return None
        step, edges = ds.field("step"), _edges(last)
        between = [(step >= low) & (step < high) for low, high in pairwise(edges)]
        places = self._possible([step < edges[0], *between, step >= edges[-1]])
        if not places:
            return last + (1 << 32)
        return None if places[0] == 0 else edges[places[0] - 1]

    def _possible(self, guarantees: Sequence[Any]) -> list[int]:
        """Places of the guarantees under which the filter is not plainly false: a dataset skips its files so.

        All of them where Arrow cannot reason: a column such as `device` has one type in a table and one in another.
        """
        form, files = ds.IpcFileFormat(), fs.LocalFileSystem()
        pieces = [
            form.make_fragment(str(place), filesystem=files, partition_expression=known)
            for place, known in enumerate(guarantees)
        ]
        whole = ds.FileSystemDataset(pieces, _schema(), form, files)
        try:
            return sorted(int(piece.path) for piece in whole.get_fragments(filter=self._expression))
        except pa.ArrowException:
            return list(range(len(pieces)))


def _edges(last: int) -> list[int]:
    """Steps, rising, the last one behind all; the first one is 1 or less."""
    back, edges = 1.0, [last + 1]
    while edges[-1] > 0:
        edges.append(last + 1 - int(back))
        back = back + 1 if back < _EXACT else back * _GROWTH
    return edges[::-1]


@cache
def _schema() -> Any:
    """Every column that a filter may name, though the fragments have no more than the two."""
    return pa.schema({column.name: ARROW_TYPES[column.type] for table in TABLES for column in table.columns})
