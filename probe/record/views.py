"""SQL over the files of recordings: a view of each table that a query names, made anew for each query.

Used by probe.record.recording.  Invariant: a view has the declared columns and types, whatever the files have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa

from ..arrays.arrow import table_of
from ..errors import Interrupted, QueryError
from ..query.catalogue import comments, explained
from ..query.duckdb_session import PATH, DuckDBSession, interruptibly
from ..query.statement import Statement
from ..schema import Column
from ..tables import TABLES
from ..tables.declaration import NEVER, Table
from .archive import Archive
from .stored import Stored, is_widened

_TRIES = 5  # a file may be merged between the listing and the reading
_TIMES = {"time", "first_time"}
_PARTITIONS = {"job", "rank"}
_KEEPING = ("create", "prepare")  # words in statements that leave a query behind, which later ones read by its name
_BATCH_ROWS = 1 << 17  # some megabytes
_STREAMED = {"INTERRUPT": duckdb.InterruptException, "IO": duckdb.IOException}
_COLUMN = Column("job", "VARCHAR", "", "Name of the recorded job.", "recorder")


class Views:
    """The tables of an archive in DuckDB, for any number of queries, one at a time.

    skipped: a line about each file that the last query left out.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive, self._session, self._since = archive, DuckDBSession(), ""
        self._kept: dict[Table, bool] = {}  # what kept queries read, and whether they have it with `job`
        self.skipped: list[str] = []

    def run(self, sql: str, since: str, max_bytes: float | None, unwanted: Callable[[], bool]) -> Any:
        """The result, a pyarrow Table of at most so many bytes.  since: UTC; rows of an earlier time do not count.
        Raises QueryError, and Interrupted once `unwanted` holds."""
        connection, self._since = self._session.connection, since
        run = partial(self._run, Statement(connection, sql), max_bytes)
        return interruptibly(run, connection.interrupt, unwanted)

    def close(self) -> None:
        self._session.close()

    def _run(self, statement: Statement, max_bytes: float | None) -> Any:
        try:
            for _ in range(_TRIES):
                try:
                    return self._execute(statement, max_bytes)
                except duckdb.IOException as error:
                    failed = error
            raise failed
        except duckdb.InterruptException:
            raise Interrupted("Interrupted.") from None
        except duckdb.Error as error:
            raise explained(error, statement, TABLES) from None

    def _execute(self, statement: Statement, max_bytes: float | None) -> Any:
        if statement.is_empty:
            raise QueryError("There is no statement in the SQL.", 'For example: "SELECT * FROM probe.agents"')
        self._refuse_unrecorded(statement)
        self._make_views(statement)
        if statement.reads_comments:
            statement.connection.execute("; ".join(comments(TABLES)))
        result = statement.connection.sql(statement.sql)
        return pa.table({}) if result is None else _table_of(result, max_bytes)

    def _refuse_unrecorded(self, statement: Statement) -> None:
        """Raises QueryError for a table that only a living job has."""
        read = {name.rpartition(".")[2].lower() for name in _read_by(statement)}
        for table in TABLES:
            if table.final == NEVER and table.short_name in read:
                raise QueryError(f"{table.name} shows a living job and is not recorded.", "", "not-recorded")

    def _make_views(self, statement: Statement) -> None:
        self.skipped, jobs = [], self._archive.jobs
        says_job, kept = statement.says("job"), self._kept
        read = [table for table in TABLES if statement.reads_catalogue or statement.names(table)]
        made = kept | {table: says_job or kept.get(table, False) for table in read}
        if any(map(statement.says, _KEEPING)):
            self._kept = made
        for table, with_job in made.items():
            self._make_view(statement.connection, table, len(jobs) > 1 or with_job)
        statement.connection.execute(f"SET search_path = '{PATH}'")

    def _make_view(self, connection: duckdb.DuckDBPyConnection, table: Table, with_job: bool) -> None:
        if table.derive_catalogue is not None:
            values = table_of(table.columns, table.derive_catalogue(TABLES))
            connection.execute(f"USE {table.schema}")
            connection.from_arrow(values).create_view(table.short_name, replace=True)
            return
        files, skipped = self._archive.files(table.name)
        self.skipped += skipped
        columns = [*table.columns, *([_COLUMN] if with_job else [])]
        connection.execute(f"CREATE OR REPLACE VIEW {table.name} AS {_select(columns, files, self._since)}")


def _table_of(result: Any, max_bytes: float | None) -> Any:
    """What a relation gives, of which no more than this is held at once.  Raises QueryError, duckdb.Error."""
    batches, size = list[Any](), 0
    with result.to_arrow_reader(_BATCH_ROWS) as reader:
        try:
            for batch in reader:
                batches.append(batch)
                size += batch.nbytes
                if max_bytes is not None and size > max_bytes:
                    hint = "Ask for less (WHERE step > …, WHERE rank = …), or allow more: --max-fetch SIZE"
                    raise QueryError(f"The result has more than {max_bytes:,.0f} bytes.", hint, "max-fetch")
        except (OSError, pa.ArrowException) as error:  # DuckDB's text: the stream to Arrow has no other errors
            kind = next((kind for word, kind in _STREAMED.items() if str(error).startswith(word)), duckdb.Error)
            raise kind(str(error)) from None
        return pa.Table.from_batches(batches, reader.schema)


def _read_by(statement: Statement) -> set[str]:
    """The names of the tables that it reads."""
    try:
        return statement.connection.get_table_names(statement.sql)
    except duckdb.Error:  # which running it will tell
        return set()


def _select(columns: Sequence[Column], files: Sequence[Stored], since: str) -> str:
    present = {name for each in files for name in each.columns} | (_PARTITIONS if files else set())
    chosen = ", ".join(_expressions(columns, present))
    if not files:
        return f"SELECT {chosen} WHERE false"
    paths = ", ".join("'" + each.path.replace("'", "''") + "'" for each in files)
    hive = "hive_partitioning = true, hive_types = {'job': VARCHAR, 'table': VARCHAR, 'rank': INTEGER}"
    time = next((each.name for each in columns if each.name in _TIMES), "")
    later = f" WHERE {time} >= TIMESTAMP '{since}'" if since and time in present else ""
    return f"SELECT {chosen} FROM read_parquet([{paths}], union_by_name = true, {hive}){later}"


def _expressions(columns: Sequence[Column], present: set[str]) -> Iterator[str]:
    for column in columns:
        name = f'"{column.name}"'
        if column.name not in present:
            yield f"NULL::{column.type} AS {name}"
        elif column.name not in _PARTITIONS and is_widened(column):
            yield f"{name}::{column.type} AS {name}"
        else:
            yield name
