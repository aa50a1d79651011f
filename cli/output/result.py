"""What a verb shows, whatever its source: named columns, read in batches.

`Records` serves verbs that build a few rows themselves, `ArrowResult` queries.  pyarrow is imported where it is used,
so that only queries and binary formats pay for the import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pyarrow as pa

    from probe.query.result import Result

LEAST_WIDTH = 26  # times and most names of modules stay whole
BATCH_ROWS = 8192  # enough to make the conversion cheap, few enough to show the first rows at once


@dataclass(frozen=True)
class Records:
    """names: unique; wrap_last: a table wraps the last column's text, paragraphs of one line each, and cuts nothing;
    least_width: below which a table on a terminal cuts no text."""

    names: Sequence[str]
    rows: Sequence[Sequence[Any]]
    wrap_last: bool = False
    least_width: int = LEAST_WIDTH

    @classmethod
    def of(cls, kind: type[Any], made: Iterable[Any]) -> Records:
        """A row for each of these dataclasses, all of `kind`, with its fields."""
        return cls([each.name for each in fields(kind)], [tuple(asdict(each).values()) for each in made])

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds numbers."""
        values = ([row[place] for row in self.rows if row[place] is not None] for place in range(len(self.names)))
        return [bool(column) and {type(value) for value in column} <= {int, float} for column in values]

    @property
    def count(self) -> int:
        return len(self.rows)

    def batches(self) -> Iterator[list[list[Any]]]:
        """Some rows at a time, as one list of Python values per column; times are ISO 8601 texts."""
        yield [[row[place] for row in self.rows] for place in range(len(self.names))]

    def first(self, rows: int) -> Records:
        return replace(self, rows=self.rows[:rows])

    def arrow(self) -> pa.Table:
        import pyarrow as pa

        columns = [[_as_arrow(value) for value in column] for column in next(self.batches())]
        return pa.table(dict(zip(self.names, columns, strict=True)))


@dataclass(frozen=True)
class ArrowResult:
    """An Arrow table, read as Records are; its names need not be unique."""

    table: pa.Table
    wrap_last: ClassVar[bool] = False
    least_width: ClassVar[int] = LEAST_WIDTH

    @cached_property
    def names(self) -> list[str]:
        return unique(self.table.column_names)

    @property
    def numeric(self) -> list[bool]:
        from pyarrow import types

        tests = types.is_integer, types.is_floating, types.is_decimal
        return [any(test(kind) for test in tests) for kind in self.table.schema.types]

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    def batches(self) -> Iterator[list[list[Any]]]:
        for batch in self.table.to_batches(max_chunksize=BATCH_ROWS):
            yield [_values(column) for column in batch.columns]

    def first(self, rows: int) -> ArrowResult:
        return ArrowResult(self.table.slice(0, rows))

    def arrow(self) -> pa.Table:
        return self.table.rename_columns(self.names)


Tabular = Records | ArrowResult


def told(result: Result, explain: bool) -> tuple[list[str], list[str]]:
    """The lines for stderr before and after the rows of a query's result."""
    from probe.query.result import SILENT

    before = result.cost.lines() if explain else []
    before += [note.text for note in result.notes if note.code != SILENT]  # the last line says it
    several = result.coverage.total > 1 or result.coverage.silent
    return before, [str(result.coverage)] if several else []


def encoded(text: str) -> bytes:
    """UTF-8; lone surrogates, which what a snippet prints may have, are escaped."""
    return text.encode("utf-8", "backslashreplace")


def _as_arrow(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_arrow(each) for each in value]
    return encoded(value).decode() if isinstance(value, str) else value


def unique(names: list[str]) -> list[str]:
    """The names, with _1, _2, … appended to repeated ones: a JSON object has each key once."""
    result: list[str] = []
    for name in names:
        candidate, number = name, 0
        while candidate in result:
            number += 1
            candidate = f"{name}_{number}"
        result.append(candidate)
    return result


def _values(column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):  # ISO 8601; one with a time zone in UTC, which needs no zone database
        zone = "Z" if column.type.tz else ""
        plain = column.cast(pa.int64()).cast(pa.timestamp(column.type.unit))
        return [text and f"{text.replace(' ', 'T')}{zone}" for text in plain.cast(pa.string()).to_pylist()]
    values: list[Any] = _dicts(column) if "map<" in str(column.type) else column.to_pylist()
    if pa.types.is_interval(column.type):
        return [None if value is None else interval(*value) for value in values]
    return values


def _dicts(column: pa.Array) -> list[Any]:
    """Maps as dicts; those whose keys are lists or structs as lists of pairs."""
    try:
        return list(column.to_pylist(maps_as_pydicts="lossy"))
    except TypeError:
        return list(column.to_pylist())


def interval(months: int, days: int, nanoseconds: int) -> str:
    """`1 month 2 days 00:00:01.5`, as DuckDB writes an interval."""
    parts = [f"{size} {unit}{'s' * (abs(size) != 1)}" for size, unit in ((months, "month"), (days, "day")) if size]
    if nanoseconds or not parts:
        seconds, fraction = divmod(abs(nanoseconds), 10**9)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(("-" if nanoseconds < 0 else "") + clock + (f".{fraction:09}".rstrip("0") if fraction else ""))
    return " ".join(parts)
