"""What each table and column means, as comments in DuckDB's own catalogue.

Called by probe.query.database before it runs a statement.  Invariant: only a statement that reads the catalogue pays
for them, for two hundred comments take 60 ms to make, which is more than most queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import duckdb

from ..tables.declaration import Table

# What shows comments.  DESCRIBE and SHOW do not.
_CATALOGUE = re.compile(r"duckdb_(columns|views)|information_schema|pg_description", re.IGNORECASE)


def comment(connection: duckdb.DuckDBPyConnection, tables: Iterable[Table], sql: str) -> None:
    """Put the declarations into the catalogue if this statement looks there."""
    if _CATALOGUE.search(sql):
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
