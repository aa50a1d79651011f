"""SQL over a job: DuckDB runs here, and asks each table for just the columns and rows that a query needs.

Called by probe.connection.  Invariant: one query sees one snapshot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from ..arrays.arrow import schema_of
from ..client.client import Client
from ..errors import Interrupted, QueryError
from ..snapshot.scans import FetchAccount
from ..snapshot.snapshot import Snapshot
from ..snapshot.source import Rank
from ..snapshot.steps_known import StepsKnown
from ..tables.declaration import Table
from .catalogue import comments, explained
from .decomposition import decomposed
from .derived_cache import DerivedCaches
from .duckdb_session import PATH, DuckDBSession, interruptibly
from .hosts import Hosts
from .result import Cost, Coverage, Result, notes_of
from .statement import Statement
from .subquery_folding import MaxStep, fold
from .table_scan import TableScan
from .unlisted import unlisted


class _LazyDataset(ds.InMemoryDataset):  # type: ignore[misc]
    """A dataset that holds nothing until DuckDB calls scanner() with the columns and the filter of a query."""

    def __new__(cls, schema: Any, fetch: Callable[[list[str] | None, Any], Any]) -> _LazyDataset:
        return super().__new__(cls)  # type: ignore[no-any-return]

    def __init__(self, schema: Any, fetch: Callable[[list[str] | None, Any], Any]) -> None:
        super().__init__(schema.empty_table())
        self._fetch = fetch

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:
        return self._fetch(columns, filter)


class _Query:
    """One query over a snapshot.  seconds: what deriving each table took; failure: our own error in one of them, kept
    for run() because errors cross DuckDB as text only; hosts: may answer for themselves."""

    def __init__(
        self, snapshot: Snapshot, pruned: bool, scans: Mapping[str, TableScan], hosts: Hosts | None = None
    ) -> None:
        self.snapshot, self.pruned, self._scans, self.hosts = snapshot, pruned, scans, hosts
        self.seconds: dict[str, float] = {}
        self.failure: BaseException | None = None
        self._lock = threading.Lock()

    def scan(self, table: str, columns: list[str] | None, filter: Any) -> Any:
        with self._lock:
            if self.failure is not None:
                raise self.failure
            began = time.monotonic()
            try:
                return self._scans[table].scan(columns, filter)
            except BaseException as error:
                self.failure = error
                raise
            finally:
                self.seconds[table] = self.seconds.get(table, 0.0) + time.monotonic() - began

    def timeline(self, rank: Rank) -> StepsKnown:
        """What is known of its steps."""
        told = self.hosts.steps.get(rank) if self.hosts is not None else None
        return told or rank.timeline

    @property
    def scanned(self) -> list[Table]:
        return [scan.table for name, scan in self._scans.items() if name in self.seconds]


class Database:
    """The tables of a job in DuckDB, for any number of queries, one at a time."""

    def __init__(self, tables: Iterable[Table], session: DuckDBSession | None = None) -> None:
        self._session = session or DuckDBSession()
        self._tables = {table.name: table for table in tables}
        self.caches = DerivedCaches()
        self._added: set[str] = set()
        self._is_confined = False
        self._query: _Query  # the current one, for the views

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return self._session.connection

    def confine(self, memory_bytes: int) -> None:
        """Let queries be single SELECTs that can read the tables and nothing else, with so much memory."""
        self._make_views(self._tables.values())
        for setting in (f"memory_limit = '{memory_bytes}B'", "temp_directory = ''", "enable_external_access = false",
                        "lock_configuration = true"):  # fmt: skip
            self._connection.execute(f"SET {setting}")
        self._is_confined = True

    def _make_views_for(self, statement: Statement) -> None:
        """Of the tables that the query may read; each takes a millisecond."""
        missing = [table for name, table in self._tables.items() if name not in self._added]
        self._make_views([table for table in missing if statement.reads_catalogue or statement.names(table)])

    def _make_views(self, wanted: Collection[Table]) -> None:
        for table in wanted:
            lazy = _LazyDataset(schema_of(table.columns), partial(self._scan, table.name))
            self._connection.execute(f"USE {table.schema}")
            self._connection.from_arrow(lazy).create_view(table.short_name)
            self._added.add(table.name)
        if wanted:
            self._connection.execute(f"SET search_path = '{PATH}'")

    def _scan(self, table: str, columns: list[str] | None, filter: Any) -> Any:
        return self._query.scan(table, columns, filter)

    def answer(
        self, sql: str, job: Snapshot, account: FetchAccount, client: Client, endpoint: str, min_ranks: int,
        begun: float,
    ) -> Result:  # fmt: skip
        """What run() returns, with its coverage, notes and cost.  begun: when the query began (time.monotonic).

        Raises QueryError, SilentError, and Interrupted once client.interrupted is set.
        """
        Coverage.of(job, time.monotonic() - begun).require(min_ranks, endpoint)
        query = self._query_over(job, hosts=Hosts(client, job, account))
        table = interruptibly(partial(self._run, sql, query), self._connection.interrupt, lambda: client.interrupted)
        seconds = time.monotonic() - begun
        coverage = Coverage.of(job, seconds).require(min_ranks, endpoint)
        cost = Cost.of(account, query.seconds, seconds)
        notes = notes_of(job, coverage, query.scanned, endpoint, query.timeline)
        notes += unlisted(job, query.scanned, endpoint)
        return Result(table, coverage, notes, cost)

    def run(self, sql: str, snapshot: Snapshot, pruned: bool = True) -> Any:
        """The result over this snapshot, a pyarrow Table; an empty one for a statement without a result.

        pruned: False fetches and derives everything and folds nothing; the result is the same.  Raises QueryError.
        """
        return self._run(sql, self._query_over(snapshot, pruned))

    def run_part(self, sql: str, snapshot: Snapshot, unwanted: Callable[[], bool]) -> Any:
        """Likewise, of what decomposition.py writes and nothing else, as long as it is wanted.  Raises QueryError."""
        if decomposed(Statement(self._connection, sql), self._tables.values()) is None:
            raise QueryError("This is no part of a query.")
        return interruptibly(partial(self.run, sql, snapshot), self._connection.interrupt, unwanted)

    def _query_over(self, snapshot: Snapshot, pruned: bool = True, hosts: Hosts | None = None) -> _Query:
        scans = {
            name: TableScan(table, snapshot, self._session.worker, self.caches, pruned)
            for name, table in self._tables.items()
        }
        return _Query(snapshot, pruned, scans, hosts)

    def _run(self, sql: str, query: _Query) -> Any:
        self._query = query
        statement = Statement(self._connection, sql)
        try:
            self._make_views_for(statement)
            return self._execute(statement, query)
        except duckdb.Error as error:
            if query.failure is not None:
                raise query.failure from None
            if isinstance(error, duckdb.InterruptException):
                raise Interrupted("Interrupted.") from None
            raise explained(error, statement, self._tables.values()) from None

    def _execute(self, statement: Statement, query: _Query) -> Any:
        if statement.is_empty:
            raise QueryError("There is no statement in the SQL.", 'For example: "SELECT * FROM probe.agents"')
        if self._is_confined and not statement.is_about_tables_alone:
            raise QueryError("This is not a single SELECT from the tables.", "Ask over a connection of your own.")
        if statement.reads_comments:
            self._connection.execute("; ".join(comments(self._tables.values())))
        if (table := self._of_hosts(statement, query)) is not None:
            return table
        folded = fold(statement, self._max_step(statement, query.snapshot)) if query.pruned else statement.sql
        if query.failure is not None:  # inside a subquery
            raise query.failure
        if (
            folded != statement.sql
            and (table := self._of_hosts(Statement(self._connection, folded), query)) is not None
        ):
            return table
        result = self._connection.sql(folded)
        return pa.table({}) if result is None else result.to_arrow_table()

    def _of_hosts(self, statement: Statement, query: _Query) -> Any:
        """The result, if hosts answer for themselves; otherwise None."""
        found = decomposed(statement, self._tables.values()) if query.hosts is not None else None
        if query.hosts is None or found is None:
            return None
        began = time.monotonic()
        table = query.hosts.answer(self._connection, statement.sql, found)
        if table is not None:
            query.seconds[found.table.name] = query.seconds.get(found.table.name, 0.0) + time.monotonic() - began
        return table

    def _max_step(self, statement: Statement, snapshot: Snapshot) -> MaxStep | None:
        tables = [name for name, table in self._tables.items() if table.by_step and statement.names(table)]
        if not tables or snapshot.open_steps or snapshot.completed is None:
            return None
        return MaxStep(snapshot.completed, frozenset(tables))

    def close(self) -> None:
        self._session.close()
