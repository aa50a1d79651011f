"""DuckDB with nothing but the schemas, opened on a thread of its own: that takes 20 ms without holding the GIL.

Begun by Connection.query before it imports whatever else a query needs, which takes longer.
"""

from __future__ import annotations

import duckdb

from .worker import Worker

SCHEMAS = ("host", "probe", "python")
PATH = f"main,{','.join(SCHEMAS)}"  # for SHOW TABLES, and to write less


class DuckDBSession:
    """worker: the thread that opens it, which is idle afterwards."""

    def __init__(self) -> None:
        self.worker = Worker()
        self._opened = self.worker.begin(_open)

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        return self._opened.result()

    def close(self) -> None:
        try:
            self.connection.close()
        finally:
            del self._opened  # an error's traceback keeps this object alive, and DuckDB would complain at exit
            self.worker.close()


def _open() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false"})
    connection.execute("SET enable_progress_bar = false")
    for schema in SCHEMAS:
        connection.execute(f"CREATE SCHEMA {schema}")
    connection.execute(f"SET search_path = '{PATH}'")
    return connection
