"""What DuckDB's own catalogue says of the tables."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import pytest
from fake_agent import FakeAgent

from probe.connection import Connection
from probe.query.statement import Statement
from probe.tables import TABLES

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
COLUMN = "column_name = 'duration' AND {}table_name = 'step_trace'"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT comment FROM duckdb_columns() WHERE {COLUMN.format('')}",
        f'SELECT "COLUMN_COMMENT" AS comment FROM information_schema.columns WHERE {COLUMN.format("")}',
        "SELECT description AS comment FROM pg_catalog.pg_description WHERE description LIKE 'Wall time of the step:%'",
    ],
)
def test_a_column_bears_its_meaning_and_unit(agent: Make, connected: Connect, sql: str) -> None:
    (row,) = connected(agent()).query(sql).to_pylist()
    assert row["comment"].startswith("Wall time of the step: from the end of the last optimizer")
    assert "Unit: s. NULL: The step of the attach" in row["comment"]


def test_every_table_and_column_has_its_comment(agent: Make, connected: Connect) -> None:
    connection = connected(agent())
    views = connection.query("SELECT schema_name || '.' || view_name AS name, comment FROM duckdb_views()").to_pylist()
    assert {table.name: table.doc for table in TABLES}.items() <= {(row["name"], row["comment"]) for row in views}
    bare = "SELECT column_name FROM duckdb_columns() WHERE schema_name IN ('host', 'probe', 'python')"
    assert connection.query(bare).num_rows == sum(len(table.columns) for table in TABLES)
    assert connection.query(f"{bare} AND comment IS NULL").num_rows == 0


@pytest.mark.parametrize("sql", ["SELECT 1", "SHOW TABLES", "SELECT duration FROM python.step_trace"])
def test_other_statements_do_not_pay_for_it(sql: str) -> None:
    with duckdb.connect() as connection:
        assert not Statement(connection, sql).reads_comments


def test_what_looks_there_does() -> None:
    with duckdb.connect() as connection:
        assert Statement(connection, "FROM DUCKDB_VIEWS()").reads_comments
