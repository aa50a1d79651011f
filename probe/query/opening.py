"""Opens the database of a connection: DuckDB starts on its own thread while this one still imports the tables.

Called by probe.connection.  Invariant: nothing else is imported before DuckDB has begun to open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .duckdb_session import DuckDBSession

if TYPE_CHECKING:
    from .database import Database


def open_database() -> Database:
    """All tables, and no rows yet; close it."""
    session = DuckDBSession()
    from ..tables import TABLES
    from .database import Database

    return Database(TABLES, session)
