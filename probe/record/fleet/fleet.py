"""SQL over recordings by Daft on Ray: the files that count go to a cluster, and the answer is that of DuckDB.

Used by `probe fleet`.  Invariant: DuckDB checks the SQL and names the columns of the result; Daft only computes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...arrays.arrow import schema_of, table_of
from ...errors import EndpointError, QueryError, UsageError
from ...query.catalogue import explained
from ...query.duckdb_session import DuckDBSession
from ...query.statement import Statement
from ...schema import Column
from ...tables import TABLES
from ...tables.declaration import NEVER, Table
from ..archive import Archive
from ..stored import Stored, is_widened, stored_types
from .said import refused
from .selects import Selects

JOB = Column("job", "VARCHAR", "", "Name of the recorded job.", "recorder")
LOCAL = "local"  # a Ray of our own, whatever else runs here


class Fleet:
    """The recordings in a folder.  skipped: a line about each file that the last query left out."""

    def __init__(self, folder: str) -> None:
        path = folder.removeprefix("file://")
        if "://" in path:
            raise EndpointError(
                f"fleet reads folders, not {folder}.", "Mount it, or copy the tables that you need.", "endpoint"
            )
        self.archive = Archive(Path(os.path.abspath(path)))
        self.skipped: list[str] = []
        if not self.archive.jobs:
            raise EndpointError(f"{folder} holds no recording.", "Record one: probe PID record DIR", "endpoint")

    def query(self, sql: str) -> Any:
        """The result, a pyarrow Table with the types that DuckDB gives it.

        Raises QueryError for SQL that is wrong, and for what Daft lacks or answers otherwise.  The caller has chosen
        where Daft runs: on_ray(), or nothing for this process.
        """
        daft = _daft()
        text, tables, schema = self.translated(sql)
        self.skipped = []
        frames = {name: self._frame(daft, table) for name, table in tables.items()}
        try:
            found = daft.sql(text, register_globals=False, **frames).to_arrow()
        except Exception as error:  # of Daft, Ray or pyarrow: they share no class
            cause = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise QueryError(f"Daft failed: {cause[:300]}.", "Ask on one machine: probe DIR query.") from error
        return _as(found, schema)

    def translated(self, sql: str) -> tuple[str, dict[str, Table], Any]:
        """Daft's SQL, the tables that it reads by their names there, and the schema of the result."""
        session = DuckDBSession()
        try:
            return self._translated(session.connection, sql)
        finally:
            session.close()

    def _translated(self, connection: Any, sql: str) -> tuple[str, dict[str, Table], Any]:
        import duckdb

        statement = Statement(connection, sql)
        with_job = len(self.archive.jobs) > 1 or statement.says("job")
        try:
            for table in TABLES:
                _make_empty(connection, table, with_job)
            result = connection.sql(sql)
            schema = pa.schema([]) if result is None else result.to_arrow_table().schema
        except duckdb.Error as error:
            raise explained(error, statement, TABLES) from None
        if statement.tree is None:
            raise refused("anything but one SELECT")
        selects = Selects({name: each for each in TABLES for name in (each.name, each.short_name)}, with_job)
        written = selects.written(statement.tree, {})
        unrecorded = [
            table.name for table in selects.read.values() if table.final == NEVER and not table.derive_catalogue
        ]
        if unrecorded:
            raise QueryError(f"{unrecorded[0]} shows a living job and is not recorded.", "", "not-recorded")
        return written.text, dict(selects.read), schema

    def _frame(self, daft: Any, table: Table) -> Any:
        """The rows of the files that count, with the declared columns and types, and `job`."""
        columns = [*table.columns, JOB]
        if table.derive_catalogue is not None:
            return daft.from_arrow(
                _plain(table_of(table.columns, table.derive_catalogue(TABLES)))
            )  # it garbles dictionaries
        files, skipped = self.archive.files(table.name)
        self.skipped += skipped
        if not files:
            return daft.from_arrow(_plain(schema_of(columns).empty_table()))
        frames = [_read(daft, group, columns) for group in _by_columns(files)]
        whole = frames[0]
        for other in frames[1:]:
            whole = whole.concat(other)
        return whole


def _make_empty(connection: Any, table: Table, with_job: bool) -> None:
    """A view without rows, by which DuckDB checks SQL."""
    columns = [*table.columns, *([JOB] if with_job and table.derive_catalogue is None else [])]
    chosen = ", ".join(f'NULL::{each.type} AS "{each.name}"' for each in columns)
    connection.execute(f"CREATE OR REPLACE VIEW {table.name} AS SELECT {chosen} WHERE false")


def _by_columns(files: Sequence[Stored]) -> list[list[Stored]]:
    """An older version may have written fewer columns."""
    groups: dict[tuple[str, ...], list[Stored]] = {}
    for each in files:
        groups.setdefault(each.columns, []).append(each)
    return list(groups.values())


def _read(daft: Any, files: Sequence[Stored], columns: Sequence[Column]) -> Any:
    """The folders' names give `job` and `rank`, with types of their own rather than guessed ones."""
    stored = {name: stored_types()[name] for name in files[0].columns}
    partitions = {"job": pa.string(), "table": pa.string(), "rank": pa.int32()}
    schema = daft.Schema.from_pyarrow_schema(pa.schema([*stored.items(), *partitions.items()]))
    types = {each.name: each.dtype for each in schema}
    frame = daft.read_parquet([each.path for each in files], infer_schema=False, schema=types, hive_partitioning=True)
    present = {*files[0].columns, "job", "rank"}
    return frame.select(*[_column(daft, each, each.name in present) for each in columns])


def _column(daft: Any, column: Column, is_present: bool) -> Any:
    """As declared: NULL where files lack it, cast back where they hold a wider type."""
    declared = daft.DataType.from_arrow_type(_plain_type(schema_of([column]).field(0).type))
    if not is_present:
        return daft.lit(None).cast(declared).alias(column.name)
    if column.name not in ("job", "rank") and is_widened(column):
        return daft.col(column.name).cast(declared)
    return daft.col(column.name)


def _plain_type(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _plain(table: Any) -> Any:
    return table.cast(pa.schema([(each.name, _plain_type(each.type)) for each in table.schema]))


def _as(found: Any, schema: Any) -> Any:
    """By place: the names and types that DuckDB gives."""
    try:
        return pa.table([found.column(place).cast(each.type) for place, each in enumerate(schema)], schema=schema)
    except pa.ArrowInvalid as error:
        raise QueryError(f"A value is too large: {error}.", "Ask on one machine: probe DIR query.") from None


@contextmanager
def on_ray(address: str) -> Iterator[None]:
    """Daft runs on this cluster; LOCAL starts Ray on this machine, which ends with it.  Raises UsageError."""
    daft = _daft()
    try:
        import ray
    except ImportError:
        raise _missing("ray") from None
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("DAFT_PROGRESS_BAR", "0")
    _reach(address)
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except Exception as error:  # Ray raises Exception itself where a node does not start in 30 s
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        hint = "Start one: ray start --head" if address != LOCAL else "Try again when this machine is less busy."
        raise EndpointError(f"No Ray cluster at {address}: {cause}", hint, "unreachable") from error
    try:
        daft.set_runner_ray()
        yield
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Ray itself tries for minutes.  Raises EndpointError."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), 5.0).close()
    except OSError as error:
        raise EndpointError(
            f"No Ray cluster at {address}: {error}.", "Start one: ray start --head", "unreachable"
        ) from None


def _daft() -> Any:
    try:
        import daft
        import daft.exceptions
    except ImportError:
        raise _missing("daft") from None
    return daft


def _missing(package: str) -> UsageError:
    return UsageError(
        f"fleet needs the package {package}.", "Run: pip install 'daft>=0.7.26' 'ray>=2.60'", "needs-package"
    )
