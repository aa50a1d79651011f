"""What DuckDB is told of the declarations: comments in its catalogue, and errors that name what there is.

Used by the databases of jobs and of recordings.  Invariant: DuckDB's own message about the user's text stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

import duckdb

from ..errors import QueryError
from ..tables.declaration import Table
from ..text import nearest
from .statement import Statement

_PROPOSED = re.compile(r'\nDid you mean "[^\n]*')  # by DuckDB, among all that it has: JSON for DOUBEL
_UNKNOWN_TABLE = re.compile(r"Table with name (\S+) does not exist")
_UNKNOWN_COLUMN = re.compile(r'Referenced column "([^"]+)" (?:not )?found|does not have a column named "([^"]+)"')


def explained(error: duckdb.Error, statement: Statement, tables: Collection[Table]) -> QueryError:
    """DuckDB's own message about the user's text, and the tables or columns that do exist."""
    if isinstance(error, (duckdb.BinderException, duckdb.CatalogException)):
        # sql() leaves out the place in the text, and may have had the folded text; execute() would copy results
        try:
            statement.connection.execute(statement.sql)
        except duckdb.Error as same:
            error = same
    text = _PROPOSED.sub("", str(error)).replace("\n\n", "\n")
    if found := _UNKNOWN_TABLE.search(text):
        short = {table.short_name: table.name for table in tables}
        meant = nearest(found[1].rpartition(".")[2].strip('"!'), short, short.__getitem__)
        return QueryError(text, meant or f"Tables: {', '.join(sorted(short.values()))}.", "unknown-table")
    if found := _UNKNOWN_COLUMN.search(text):
        asked = [table for table in tables if statement.names(table)] or tables
        columns = dict.fromkeys(column.name for table in asked for column in table.columns)
        meant, names = nearest(found[1] or found[2], columns), ", ".join(table.name for table in asked)
        return QueryError(text, meant or f"Columns of {names}: {', '.join(columns)}.", "unknown-column")
    return QueryError(text)


def comments(tables: Iterable[Table]) -> Iterator[str]:
    """Statements that write the declarations into DuckDB's catalogue.  Two hundred comments take 60 ms, more than most
    queries, so this is done only for statements that read comments."""
    for table in tables:
        yield f"COMMENT ON VIEW {table.name} IS {_quoted(table.doc)}"
        for column in table.columns:
            unit = [f"Unit: {column.unit}."] if column.unit else []
            text = " ".join([column.doc, *unit, *column.remarks])
            yield f'COMMENT ON COLUMN {table.name}."{column.name}" IS {_quoted(text)}'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
