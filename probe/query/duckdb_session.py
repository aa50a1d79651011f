"""DuckDB, empty but for the schemas, opened on a thread of its own: that takes 20 ms and not the GIL.

Begun by Connection.query before it imports what else a query needs, which takes longer.
"""

from __future__ import annotations

import duckdb

from .worker import Worker

SCHEMAS = ("host", "probe", "python")
PATH = f"main,{','.join(SCHEMAS)}"  # for SHOW TABLES, and to write less


class DuckDBSession:
    """helper: the thread, which has nothing to do afterwards."""

    def __init__(self) -> None:
        self.helper = Worker()
        self._opened = self.helper.begin(_opened)

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        return self._opened.result()

    def close(self) -> None:
        try:
            self.connection.close()
        finally:
            del self._opened  # an error's traceback holds on to this object, and DuckDB complains at exit
            self.helper.close()


def _opened() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false"})
    connection.execute("SET enable_progress_bar = false")
    for schema in SCHEMAS:
        connection.execute(f"CREATE SCHEMA {schema}")
    connection.execute(f"SET search_path = '{PATH}'")
    return connection
