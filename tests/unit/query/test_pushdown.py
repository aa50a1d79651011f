"""However a query is answered, by filters and bounds sent along or by everything there is, its result is the same."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pytest
from fake_agent import FakeAgent, resolved
from uneven import MS, NOW, train
from varied import QUERIES

from probe.connection import Connection
from probe.host import agent_memory
from probe.query import rank_batch, step_blocks
from probe.query.database import Database
from probe.query.duckdb_session import SCHEMAS
from probe.query.filter_pruning import Filter
from probe.snapshot.snapshot import Snapshot
from probe.tables import TABLES

pytestmark = pytest.mark.slow

Connect = Callable[[], Connection]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[FakeAgent]]:
    folder = Path(f"/tmp/probe-pushdown-{os.getpid()}")
    folder.mkdir()
    made = []
    for rank in range(3):
        agent = FakeAgent(folder, rank, 3)
        train(agent, random.Random(rank))
        for second in range(40):
            agent.sample(second * 1000 * MS, (1, second * 100 * MS), (10, second * 70), (11, second * 30))
        agent.now = lambda agent=agent: {**agent.facts, "monotonic_ns": NOW, "wall_ns": 10**18}  # type: ignore[method-assign, misc]
        made.append(agent)
    yield made
    for agent in made:
        agent.close()
    for left in folder.iterdir():
        left.unlink()
    folder.rmdir()


@pytest.fixture(
    scope="module", params=[(1, 1 << 18), (1, 100), (3, 1 << 18)], ids=["one rank", "blocks", "three ranks"]
)
def connect(agents: list[FakeAgent], request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes new connections, which have fetched nothing yet."""
    patch = pytest.MonkeyPatch()
    patch.setattr(agent_memory, "facts", lambda pid: None)
    patch.setattr(rank_batch, "MIN_RANKS", 2)  # as of many ranks
    ranks, of_block = request.param
    patch.setattr(step_blocks, "ROWS_A_BLOCK", of_block)
    patch.setattr(step_blocks, "LOOKED_UP_TOGETHER", 8)
    chosen = agents[:ranks]
    yield lambda: Connection(resolved(*chosen))
    patch.undo()


@pytest.fixture(scope="module")
def tables(connect: Connect) -> Iterator[duckdb.DuckDBPyConnection]:
    """The same tables without anything of ours behind them."""
    plain = duckdb.connect()
    for schema in SCHEMAS:
        plain.execute(f"CREATE SCHEMA {schema}")
    with connect() as connection:
        query, job = Database(TABLES), snapshot(connection)
        for table in TABLES:
            rows = query.run(f"SELECT * FROM {table.name}", job, pruned=False)  # noqa: F841, found by its name
            plain.execute(f"CREATE TABLE {table.name} AS SELECT * FROM rows")
        query.close()
    plain.execute(f"SET search_path = 'main,{','.join(SCHEMAS)}'")
    yield plain
    plain.close()


@pytest.fixture(scope="module")
def living(connect: Connect) -> Iterator[Connection]:
    """A connection that answers one query after the other, and keeps what it has read."""
    with connect() as connection:
        connection.query("SELECT 1")  # its threads are there from now on
        yield connection


def snapshot(connection: Connection) -> Snapshot:
    connection.query("SELECT 1")
    return connection.snapshot()


def rows(result: Any) -> list[str]:
    """In the order that the query asks for, which all of them do; floats as they are, sums in any order."""
    return [repr([rounded(value) for value in row.values()]) for row in result.to_pylist()]


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return [rounded(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("sql", QUERIES)
def test_bounds_and_foldings_change_no_result(
    sql: str, connect: Connect, living: Connection, tables: duckdb.DuckDBPyConnection
) -> None:
    expected = rows(tables.sql(sql).to_arrow_table())
    with connect() as fresh:
        assert rows(fresh.query(sql)) == expected
    assert rows(living.query(sql)) == expected


def test_a_filter_that_arrow_cannot_judge_leaves_nothing_out() -> None:
    """`device` is a number in python.kernel_trace, and a text elsewhere."""
    asked = Filter((ds.field("rank") == 0) & (ds.field("device") == 0))
    assert 0 in asked.possible_ranks([0, 1])


def test_the_queries_are_many_and_most_of_them_have_rows(tables: duckdb.DuckDBPyConnection) -> None:
    assert len(set(QUERIES)) >= 80
    assert sum(tables.sql(sql).to_arrow_table().num_rows > 0 for sql in QUERIES) >= 85
