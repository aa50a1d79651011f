"""What each table and column means, as comments in DuckDB's own catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import duckdb

from ..tables.declaration import Table


def comment(connection: duckdb.DuckDBPyConnection, tables: Iterable[Table]) -> None:
    """Write the declarations into the catalogue.  Two hundred comments take 60 ms, more than most queries: it is done
    for statements that read comments only."""
    connection.execute("; ".join(_statements(tables)))


def _statements(tables: Iterable[Table]) -> Iterator[str]:
    for table in tables:
        yield f"COMMENT ON VIEW {table.name} IS {_quoted(table.doc)}"
        for column in table.columns:
            unit = [f"Unit: {column.unit}."] if column.unit else []
            text = " ".join([column.doc, *unit, *column.remarks])
            yield f'COMMENT ON COLUMN {table.name}."{column.name}" IS {_quoted(text)}'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
