"""What a verb shows, whatever its source: named columns, read in batches.

`Records` serves verbs that build a few rows themselves; query's Arrow result is in arrow_result.py, so that only query
pays for the import of pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Result(Protocol):
    """names: unique; numeric: which columns hold numbers; count: number of rows."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def numeric(self) -> Sequence[bool]: ...
    @property
    def count(self) -> int: ...
    def batches(self) -> Iterator[list[list[Any]]]:
        """Some rows at a time, as one list of Python values per column; times are ISO 8601 texts."""
        ...

    def arrow(self) -> pa.Table: ...


@dataclass(frozen=True)
class Records:
    names: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @property
    def numeric(self) -> list[bool]:
        values = ([row[place] for row in self.rows if row[place] is not None] for place in range(len(self.names)))
        return [bool(column) and {type(value) for value in column} <= {int, float} for column in values]

    @property
    def count(self) -> int:
        return len(self.rows)

    def batches(self) -> Iterator[list[list[Any]]]:
        yield [[row[place] for row in self.rows] for place in range(len(self.names))]

    def arrow(self) -> pa.Table:
        import pyarrow as pa

        return pa.table(dict(zip(self.names, next(self.batches()), strict=True)))
