"""However a query is answered, by filters and bounds sent along or by everything there is, its result is the same."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from fake_agent import ADAM, LINEAR, MODEL, FakeAgent, resolved
from varied import QUERIES

from probe.connection import Connection
from probe.host import agent_memory
from probe.query import rank_batch, step_blocks
from probe.query.database import Database
from probe.query.duckdb_session import SCHEMAS
from probe.snapshot.snapshot import Snapshot
from probe.streams import BEGIN, BLOCKING, END, ENGINE, LOG_GROUP, LOG_MODULE, OPTIMIZER, SAMPLED, WAIT
from probe.tables import TABLES

pytestmark = pytest.mark.slow

Connect = Callable[[], Connection]

MS = 1_000_000
STEPS = 40
BLOCKS = {2001: "block0", 2002: "block1", 2003: "block1.norm"}
NOW = STEPS * 1000 * MS


def train(agent: FakeAgent, chance: random.Random) -> None:
    """Steps of uneven length: blocks that nest, a second pass now and then, loads, collectives that may overlap."""
    agent.name_modules()
    for serial, name in BLOCKS.items():
        agent.put(LOG_MODULE, serial, name=name, type=name[:5].title(), parent=MODEL, root=MODEL)
    agent.put(LOG_GROUP, 1, name="0", backend="gloo", size=3, rank=agent.rank, ranks=[0, 1, 2])
    at = 10 * MS
    for step in range(STEPS):
        took = partial(chance.randint, 1 * MS, 20 * MS)
        agent.load(at, at + took())
        at += 25 * MS
        for _ in range(1 + (step % 9 == 4)):
            at = forward_and_backward(agent, at, took)
        agent.operate(at, at + MS // 10, at + took() if step < STEPS - 1 or agent.rank else 0)
        agent.span(at + 21 * MS, at + 30 * MS, ADAM, OPTIMIZER)
        agent.boundary(at + 29 * MS, group_seq=step, flags=SAMPLED if step not in (11, 12, 13) else 0)
        at += 31 * MS + took()


def forward_and_backward(agent: FakeAgent, at: int, took: Callable[[], int]) -> int:
    begin = at
    for serial in (2001, 2003, 2002):
        start, at = at + MS, at + MS + took()
        if serial == 2002:  # around the norm before it
            start = start - MS // 2
        agent.span(start, at, serial)
        agent.operate(start + MS // 4, start + MS // 3, start + MS // 2, flags=BLOCKING if serial == 2002 else 0)
        agent.span(at - MS // 9, at - MS // 10, 0, WAIT)
    agent.span(at, at + MS, LINEAR)
    agent.span(begin, at + 2 * MS, MODEL)
    start = at = at + 3 * MS
    agent.mark(at, MODEL, BEGIN)
    for serial in (LINEAR, 2002, 2001):
        agent.mark(at + MS, serial, BEGIN)
        at += MS + took()
        agent.mark(at, serial, END)
    agent.operate(start + MS, start + MS + MS // 8, at + MS // 2, by="ddp")
    agent.span(start - MS // 2, at + MS, 0, ENGINE)
    return at + 2 * MS


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


def test_the_queries_are_many_and_most_of_them_have_rows(tables: duckdb.DuckDBPyConnection) -> None:
    assert len(set(QUERIES)) >= 80
    assert sum(tables.sql(sql).to_arrow_table().num_rows > 0 for sql in QUERIES) >= 85
