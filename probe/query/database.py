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
from .derived_cache import DerivedCaches
from .duckdb_session import PATH, DuckDBSession
from .max_step import MaxStep
from .statement import Statement
from .subquery_folding import fold
from .table_scan import TableScan

_UNKNOWN_TABLE = re.compile(r"Table with name (\S+) does not exist")
_UNKNOWN_COLUMN = re.compile(r'Referenced column "([^"]+)" (?:not )?found|does not have a column named "([^"]+)"')


class _LazyDataset(ds.InMemoryDataset):  # type: ignore[misc]
    """A dataset that holds nothing until DuckDB calls scanner() with the columns and the filter of a query."""

    def __new__(cls, schema: Any, fetch: Callable[[list[str] | None, Any], Any]) -> _LazyDataset:
        return super().__new__(cls)  # type: ignore[no-any-return]

    def __init__(self, schema: Any, fetch: Callable[[list[str] | None, Any], Any]) -> None:
        super().__init__(schema.empty_table())
        self._fetch = fetch

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:
        return self._fetch(columns, filter)


class Database:
    """The tables of a job in DuckDB, for any number of queries.  interrupt() from any thread or signal handler."""

    def __init__(self, tables: Iterable[Table], session: DuckDBSession | None = None) -> None:
        self._session = session or DuckDBSession()
        self._tables = {table.name: table for table in tables}
        self._scans: dict[str, TableScan] = {}
        self.caches = DerivedCaches()
        self.seconds: dict[str, float] = {}  # what deriving each table took for the last query
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._added: set[str] = set()

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return self._session.connection

    @property
    def scanned(self) -> list[Table]:
        """The tables that the last query read."""
        return [scan.table for scan in self._scans.values() if scan.scanned]

    def _make_views(self, statement: Statement) -> None:
        """Of the tables that the query may read; each takes a millisecond."""
        missing = [table for name, table in self._tables.items() if name not in self._added]
        wanted = [table for table in missing if statement.reads_catalogue or statement.names(table)]
        for table in wanted:
            lazy = _LazyDataset(schema_of(table.columns), partial(self._scan, table.name))
            self._connection.execute(f"USE {table.schema}")
            self._connection.from_arrow(lazy).create_view(table.short_name)
            self._added.add(table.name)
        if wanted:
            self._connection.execute(f"SET search_path = '{PATH}'")

    def _scan(self, table: str, columns: list[str] | None, filter: Any) -> Any:
        """Our errors cross DuckDB as text only, so the exception itself is kept for run()."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            began = time.monotonic()
            try:
                return self._scans[table].scan(columns, filter)
            except BaseException as error:
                self._failure = error
                raise
            finally:
                self.seconds[table] = self.seconds.get(table, 0.0) + time.monotonic() - began

    def run(self, sql: str, snapshot: Snapshot, pruned: bool = True) -> Any:
        """The result over this snapshot, a pyarrow Table; an empty one for a statement without a result.

        pruned: False fetches and derives everything and folds nothing; the result is the same.  Raises QueryError.
        """
        self._failure, self.seconds = None, {}
        self._scans = {
            name: TableScan(table, snapshot, self._session.worker, self.caches, pruned)
            for name, table in self._tables.items()
        }
        statement = Statement(self._connection, sql)
        try:
            self._make_views(statement)
            return self._execute(statement, snapshot if pruned else None)
        except duckdb.Error as error:
            if self._failure is not None:
                raise self._failure from None
            if isinstance(error, duckdb.InterruptException):
                raise Interrupted("Interrupted.") from None
            raise self._hinted(self._with_caret(sql, error), statement) from None

    def _execute(self, statement: Statement, snapshot: Snapshot | None) -> Any:
        if statement.is_empty:
            raise QueryError("There is no statement in the SQL.", 'For example: "SELECT * FROM probe.agents"')
        if statement.reads_comments:
            comment(self._connection, self._tables.values())
        folded = fold(statement, self._max_step(statement, snapshot)) if snapshot is not None else statement.sql
        if self._failure is not None:  # inside a subquery
            raise self._failure
        result = self._connection.sql(folded)
        return pa.table({}) if result is None else result.to_arrow_table()

    def _max_step(self, statement: Statement, snapshot: Snapshot) -> MaxStep | None:
        tables = [name for name, table in self._tables.items() if table.by_step and statement.names(table)]
        if not tables or snapshot.open_steps or snapshot.completed is None:
            return None
        return MaxStep(snapshot.completed, frozenset(tables))

    def _with_caret(self, sql: str, error: duckdb.Error) -> duckdb.Error:
        """DuckDB's error about the user's own text, with the place in it, which sql() leaves out."""
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
        self._session.close()

    def _hinted(self, error: duckdb.Error, statement: Statement) -> ProbeError:
        """DuckDB's own message with its caret, and the tables or columns that do exist."""
        text = str(error)
        table = _UNKNOWN_TABLE.search(text)
        if table:
            return QueryError(text, self._table_hint(table.group(1)), "unknown-table")
        column = _UNKNOWN_COLUMN.search(text)
        if column:
            return QueryError(text, self._column_hint(column.group(1) or column.group(2), statement), "unknown-column")
        return QueryError(text)

    def _table_hint(self, name: str) -> str:
        short = {table.short_name: full for full, table in self._tables.items()}
        near = get_close_matches(name.lower().rpartition(".")[2].strip('"!'), short, n=1, cutoff=0.5)
        nearest = f"Nearest: {short[near[0]]}. " if near else ""
        return f"{nearest}Tables: {', '.join(sorted(self._tables))}."

    def _column_hint(self, name: str, statement: Statement) -> str:
        tables = list(self._tables.values())
        asked = [table for table in tables if statement.names(table)] or tables
        names = list(dict.fromkeys(column.name for table in asked for column in table.columns))
        near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        nearest = f"Nearest: {near[0]}. " if near else ""
        return f"{nearest}Columns of {', '.join(table.name for table in asked)}: {', '.join(names)}."
