"""Scalar subqueries are folded to constants where that changes nothing, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from probe.query.statement import Statement
from probe.query.subquery_folding import fold

FOLDED = [
    "SELECT count(*) FROM python.t WHERE step > (SELECT max(step) - 10 FROM python.t)",
    "SELECT (SELECT max(step) FROM python.t) AS mx, count(*) FROM python.t",
    "SELECT x FROM python.t WHERE name = (SELECT name FROM python.t WHERE x = 4)",
    "SELECT count(*) FROM python.t WHERE x < (SELECT avg(x) FROM python.t) AND step <> (SELECT min(x) FROM python.t)",
    "SELECT count(*) FROM python.t WHERE x > (SELECT NULL::BIGINT)",
    "WITH w AS (SELECT * FROM python.t WHERE step > (SELECT max(step) - 3 FROM python.t)) SELECT sum(x) FROM w",
]
LEFT = [
    "SELECT count(*) FROM python.t",
    "SELECT count(*) FROM python.t a WHERE x > (SELECT avg(x) FROM python.t b WHERE b.step % 2 = a.step % 2)",
    "WITH m AS (SELECT max(step) AS m FROM python.t) SELECT count(*) FROM python.t WHERE step >= (SELECT m FROM m)",
    "SELECT count(*) FROM python.t WHERE x > (SELECT random() - 2)",
    "SELECT count(*) FROM python.t WHERE x > (SELECT x FROM python.t WHERE x > 1000)",
    "SELECT * FROM python.t WHERE step IN (SELECT step FROM python.t WHERE x > 190) ORDER BY step",
    "SELECT 1; SELECT (SELECT 2)",
    "SELEC (SELECT 1)",
]


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    made = duckdb.connect()
    made.execute("CREATE SCHEMA python")
    made.execute(
        "CREATE TABLE python.t AS SELECT range AS step, range * 2 AS x, 'it''s ' || range AS name FROM range(100)"
    )
    yield made
    made.close()


@pytest.mark.parametrize("sql", FOLDED)
def test_a_constant_is_folded_and_the_result_the_same(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    folded = fold(Statement(connection, sql))
    assert folded != sql and "max(" not in folded.partition("WHERE")[2].lower()
    expected, got = connection.sql(sql), connection.sql(folded)
    assert got.columns == expected.columns and got.fetchall() == expected.fetchall()


@pytest.mark.parametrize("sql", LEFT)
def test_what_is_no_constant_is_left_as_it_stands(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert fold(Statement(connection, sql)) == sql
