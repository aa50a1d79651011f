"""SQL over a job: DuckDB runs here, and asks each table for just the columns and rows that a query needs.

Called by probe.connection.  Invariant: one query sees one snapshot.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from ..arrays.arrow import schema_of
from ..errors import Interrupted, ProbeError, QueryError
from ..snapshot.snapshot import Snapshot
from ..tables.declaration import Table
from .catalogue import comment
from .duckdb_session import PATH, DuckDBSession
from .max_step import MaxStep
from .subquery_folding import fold
from .table_scan import TableScan

_CATALOGUE = ("information_schema", "duckdb_", "pg_", "pragma", "show", "describe")  # of statements about all tables
_UNKNOWN_TABLE = re.compile(r"Table with name (\S+) does not exist")
_UNKNOWN_COLUMN = re.compile(r'Referenced column "([^"]+)" (?:not )?found|does not have a column named "([^"]+)"')


class _Lazy(ds.InMemoryDataset):  # type: ignore[misc]
    """A dataset that has nothing until DuckDB asks: scanner() gets the columns and the filter of the query."""

    def __new__(cls, schema: Any, fetch: Callable[[list[str] | None, Any], Any]) -> _Lazy:
        return super().__new__(cls)  # type: ignore[no-any-return]

    def __init__(self, schema: Any, fetch: Callable[[list[str] | None, Any], Any]) -> None:
        super().__init__(schema.empty_table())
        self._fetch = fetch

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:
        return self._fetch(columns, filter)


class Database:
    """The tables of a job in DuckDB, for any number of queries.  interrupt() from any thread or signal handler."""

    def __init__(self, tables: Iterable[Table], opening: DuckDBSession | None = None) -> None:
        self._opening = opening or DuckDBSession()
        self._tables = {table.name: table for table in tables}
        self._by_step = [table.name for table in self._tables.values() if table.by_step]
        self._derived: dict[str, TableScan] = {}
        self.seconds: dict[str, float] = {}  # that making each table took for the last query
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._added: set[str] = set()

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return self._opening.connection

    @property
    def scanned(self) -> list[Table]:
        """The tables that the last query has asked for anything."""
        return [derived.table for derived in self._derived.values() if derived.scanned]

    def _add(self, sql: str) -> None:
        """The tables that the query may name; each takes a millisecond."""
        text = sql.lower()
        every = any(word in text for word in _CATALOGUE)
        missing = [table for name, table in self._tables.items() if name not in self._added]
        wanted = [table for table in missing if every or table.short_name in text]
        for table in wanted:
            lazy = _Lazy(schema_of(table.columns), partial(self._fetch, table.name))
            self._connection.execute(f"USE {table.schema}")
            self._connection.from_arrow(lazy).create_view(table.short_name)
            self._added.add(table.name)
        if wanted:
            self._connection.execute(f"SET search_path = '{PATH}'")

    def _fetch(self, table: str, columns: list[str] | None, filter: Any) -> Any:
        """Errors of ours cross DuckDB as text only: the exception itself is kept for run()."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            began = time.monotonic()
            try:
                return self._derived[table].scan(columns, filter)
            except BaseException as error:
                self._failure = error
                raise
            finally:
                self.seconds[table] = self.seconds.get(table, 0.0) + time.monotonic() - began

    def run(self, sql: str, job: Snapshot, pruned: bool = True) -> Any:
        """The result over this snapshot, a pyarrow Table; an empty one for a statement without a result.

        pruned: False fetches and derives everything and folds nothing; the result is the same.  Raises QueryError.
        """
        self._failure = None
        self.seconds = {}
        self._derived = {
            name: TableScan(table, job, self._opening.helper, pruned) for name, table in self._tables.items()
        }
        try:
            self._add(sql)
            return self._execute(sql, job if pruned else None)
        except duckdb.Error as error:
            if self._failure is not None:
                raise self._failure from None
            if isinstance(error, duckdb.InterruptException):
                raise Interrupted("Interrupted.") from None
            raise self._told(self._with_caret(sql, error)) from None

    def _execute(self, sql: str, job: Snapshot | None) -> Any:
        if not self._connection.extract_statements(sql):
            raise QueryError("There is no statement in the SQL.", 'For example: "SELECT * FROM probe.agents"')
        comment(self._connection, self._tables.values(), sql)
        folded = fold(self._connection, sql, self._newest(sql, job)) if job is not None else sql
        if self._failure is not None:  # met inside a subquery
            raise self._failure
        result = self._connection.sql(folded)
        return pa.table({}) if result is None else result.to_arrow_table()

    def _newest(self, sql: str, job: Snapshot) -> MaxStep | None:
        tables = [name for name in self._by_step if self._tables[name].short_name in sql.lower()]
        if not tables or job.open_steps or job.completed is None:
            return None
        return MaxStep(job.completed, frozenset(tables))

    def _with_caret(self, sql: str, error: duckdb.Error) -> duckdb.Error:
        """The error as DuckDB tells it of the very text of the user; sql() leaves the place out."""
        if not isinstance(error, (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)):
            return error
        try:
            self._connection.execute(sql)
        except duckdb.Error as same:
            return same
        return error

    def interrupt(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        self._opening.close()

    def _told(self, error: duckdb.Error) -> ProbeError:
        """DuckDB's own message with its caret, and what there is instead of what was asked for."""
        text = str(error)
        table = _UNKNOWN_TABLE.search(text)
        if table:
            return QueryError(text, self._table_hint(table.group(1)), "unknown-table")
        column = _UNKNOWN_COLUMN.search(text)
        if column:
            return QueryError(text, self._column_hint(column.group(1) or column.group(2), text), "unknown-column")
        return QueryError(text)

    def _table_hint(self, name: str) -> str:
        short = {table.short_name: full for full, table in self._tables.items()}
        near = get_close_matches(name.lower().rpartition(".")[2].strip('"!'), short, n=1, cutoff=0.5)
        nearest = f"Nearest: {short[near[0]]}. " if near else ""
        return f"{nearest}Tables: {', '.join(sorted(self._tables))}."

    def _column_hint(self, name: str, text: str) -> str:
        asked = [table for table in self._tables.values() if table.short_name in text] or list(self._tables.values())
        names = list(dict.fromkeys(column.name for table in asked for column in table.columns))
        near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        nearest = f"Nearest: {near[0]}. " if near else ""
        return f"{nearest}Columns of {', '.join(table.name for table in asked)}: {', '.join(names)}."
