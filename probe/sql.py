"""SQL over a job: DuckDB runs here, and asks each table for just the columns and rows that a query needs.

Called by probe.connection.  Invariant: one query sees one snapshot, and derives a table once however often
it is scanned.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from .arrow import ARROW_TYPES, repeated, schema_of, table_of
from .errors import Interrupted, ProbeError, QueryError
from .fold import fold
from .raw import Job, Left, Raw
from .schema import Columns, Table

SCHEMAS = ("host", "probe", "python")
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


class _Derived:
    """One table of one snapshot; may be scanned from several threads of DuckDB."""

    def __init__(self, table: Table, job: Job) -> None:
        self.table, self._job = table, job
        self.scanned = False
        self._values: list[tuple[Raw | None, Columns]] | None = None
        self._made: dict[str, Any] = {}

    def scan(self, columns: list[str] | None, filter: Any) -> Any:
        self.scanned = True
        wanted = set([column.name for column in self.table.columns] if columns is None else columns)
        if filter is not None:
            text = str(filter)
            wanted |= {column.name for column in self.table.columns if column.name in text}
        return ds.dataset(self._arrow(wanted)).scanner(columns=columns, filter=filter)

    def _arrow(self, names: Iterable[str]) -> Any:
        declared = [column for column in self.table.columns if column.name in names] or [self.table.columns[0]]
        if self._values is None:
            self._values = self._derive()
        for column in declared:
            if column.name not in self._made:
                pieces = [table_of([column], values).column(0) for _, values in self._values]
                chunks = [chunk for piece in pieces for chunk in piece.chunks]
                self._made[column.name] = pa.chunked_array(chunks, ARROW_TYPES[column.type])
        return pa.table([self._made[column.name] for column in declared], schema=schema_of(declared))

    def _derive(self) -> list[tuple[Raw | None, Columns]]:
        if self.table.derive_job is not None:
            return [(None, self.table.derive_job(self._job))]
        assert self.table.derive is not None
        for stream in self.table.streams:  # first of all, so that a rank that falls silent is in no result
            self._job.fetch_once(stream)
        values: list[tuple[Raw | None, Columns]] = []
        for raw in list(self._job.raws):
            try:
                values.append((raw, _with_common(raw, self.table.derive(raw))))
            except Left:
                continue
        return [(raw, columns) for raw, columns in values if raw in self._job.raws]


def _with_common(raw: Raw, values: Columns) -> Columns:
    rows = len(values["start_ns"])
    return {
        "rank": lambda: repeated(raw.rank, rows, "INTEGER"),
        "host": lambda: repeated(raw.host, rows, "VARCHAR"),
        "pid": lambda: repeated(raw.pid, rows, "INTEGER"),
        "time": lambda: pc.cast(pa.array(raw.wall_us(values["start_ns"])), pa.timestamp("us")),
        **values,
    }


class Query:
    """One SQL text over one snapshot.  interrupt() from any thread or signal handler."""

    def __init__(self, tables: Iterable[Table], job: Job) -> None:
        self._tables = {table.name: table for table in tables}
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false"})
        self._connection.execute("SET enable_progress_bar = false")
        for schema in SCHEMAS:
            self._connection.execute(f"CREATE SCHEMA {schema}")
        self._derived = [_Derived(table, job) for table in self._tables.values()]
        for derived in self._derived:
            self._add(derived.table, derived)
        self._connection.execute(f"SET search_path = 'main,{','.join(SCHEMAS)}'")  # for SHOW TABLES, and to write less

    @property
    def scanned(self) -> list[Table]:
        """The tables that were asked for anything."""
        return [derived.table for derived in self._derived if derived.scanned]

    def _add(self, table: Table, derived: _Derived) -> None:
        self._connection.execute(f"USE {table.schema}")
        lazy = _Lazy(schema_of(table.columns), self._guarded(derived))
        self._connection.from_arrow(lazy).create_view(table.short_name)

    def _guarded(self, derived: _Derived) -> Callable[[list[str] | None, Any], Any]:
        """Errors of ours cross DuckDB as text only: the exception itself is kept for run()."""

        def fetch(columns: list[str] | None, filter: Any) -> Any:
            with self._lock:
                if self._failure is not None:
                    raise self._failure
                try:
                    return derived.scan(columns, filter)
                except BaseException as error:
                    self._failure = error
                    raise

        return fetch

    def run(self, sql: str) -> Any:
        """The result as a pyarrow Table; an empty one for a statement without a result.  Raises QueryError."""
        try:
            return self._execute(sql)
        except duckdb.Error as error:
            if self._failure is not None:
                raise self._failure from None
            if isinstance(error, duckdb.InterruptException):
                raise Interrupted("Interrupted.") from None
            raise self._told(self._with_caret(sql, error)) from None

    def _execute(self, sql: str) -> Any:
        if not self._connection.extract_statements(sql):
            raise QueryError("There is no statement in the SQL.", 'For example: "SELECT * FROM probe.agents"')
        folded = fold(self._connection, sql)
        if self._failure is not None:  # met inside a subquery
            raise self._failure
        result = self._connection.sql(folded)
        return pa.table({}) if result is None else result.to_arrow_table()

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
        self._connection.close()
        del self._connection  # an error's traceback holds on to this object, and DuckDB complains at exit

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
