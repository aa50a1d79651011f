"""Hosts that answer for their own ranks: the result is that of fetching all rows, and no rows are fetched."""

from __future__ import annotations

import math
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planted_rank import planted_ranks
from serving import Serving
from until import until
from varied import QUERIES

from probe import keys
from probe import protocol as wire
from probe.client.endpoints import Resolved, address_of
from probe.connection import Connection
from probe.errors import QueryError
from probe.host.facts import Facts
from probe.query import host_part, hosts
from probe.query.decomposition import decomposed
from probe.query.result import Note, Result
from probe.query.statement import Statement
from probe.serve import relay
from probe.serve.answers import Answers
from probe.snapshot.pinned import pin
from probe.snapshot.scans import AgentRank
from probe.tables import TABLES
from probe.version import __version__

pytestmark = pytest.mark.slow

SUMS = "SELECT rank, module, sum(duration), count(*), avg(seq) FROM python.torch_trace GROUP BY ALL"
ALWAYS, NEVER = 0, 1 << 60
Query = Callable[..., Result]


@contextmanager
def two_played_hosts(step_ends: str = "") -> Iterator[tuple[Resolved, Path, list[list[dict[str, Any]]]]]:
    """Two hosts with two ranks each, the key of both, and the facts of the ranks."""
    with ExitStack() as stack:
        # Seen through /proc/PID/root, the paths of sockets have to be short.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        key = folder / "key"
        keys.create(str(key))
        servers = []
        for facts in (of_hosts := stack.enter_context(planted_ranks(folder, ["a", "b"], 2, step_ends))):
            ranks: list[Any] = [SimpleNamespace(facts=each, path=each["endpoint"][6:]) for each in facts]
            servers.append(Serving(folder, *ranks, key=key))
            stack.callback(servers[-1].close)
        yield Resolved("two hosts", [server.at_port for server in servers]), key, of_hosts


@pytest.fixture(scope="module")
def played() -> Iterator[tuple[Resolved, Path]]:
    with pytest.MonkeyPatch.context() as patch, two_played_hosts() as (resolved, key, _):
        patch.setattr(relay, "_IDLE_S", 0.1)  # what is left after a test would be waited for
        yield resolved, key


@pytest.fixture(scope="module")
def job(played: tuple[Resolved, Path]) -> Iterator[Connection]:
    with Connection(played[0], 20.0, str(played[1])) as made:
        query(made, ALWAYS, SUMS)  # the hosts start what answers
        yield made


def query(job: Connection, worth: int, sql: str, **options: Any) -> Result:
    before, hosts.WORTH_BYTES = hosts.WORTH_BYTES, worth
    try:
        return job.query(sql, **options)
    finally:
        hosts.WORTH_BYTES = before


def is_decomposed(sql: str) -> bool:
    with duckdb.connect() as connection:
        return decomposed(Statement(connection, sql), TABLES) is not None


def cells(result: Result) -> list[tuple[Any, ...]]:
    """In an order that does not depend on the last digits."""
    rows = [tuple(row.values()) for row in result.table.to_pylist()]
    return sorted(rows, key=lambda row: sorted((isinstance(each, float), place, shown(each))
                                               for place, each in enumerate(row)))  # fmt: skip


def shown(cell: Any) -> str:
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def is_near(one: Any, other: Any) -> bool:
    """Floats are added in another order."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (one != one and other != other)
    return bool(one == other)


def noted(note: Note) -> tuple[object, ...]:
    """Without the time that it took."""
    return note.code, note.ranks, re.sub(r"in [\d.]+ s", "", note.text)


def require_equal(parts: Result, plain: Result) -> None:
    assert parts.table.schema == plain.table.schema
    ours, theirs = cells(parts), cells(plain)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert all(map(is_near, one, other)), (one, other)
    if plain.cost.tables_s:  # a filter that contradicts itself is not asked of any table, whose notes are lacking then
        assert [noted(each) for each in parts.notes] == [noted(each) for each in plain.notes]
    assert (parts.coverage.answered, parts.coverage.silent) == (plain.coverage.answered, plain.coverage.silent)


def test_no_rows_travel(job: Connection) -> None:
    parts, plain = query(job, ALWAYS, SUMS), query(job, NEVER, SUMS)
    require_equal(parts, plain)
    assert [(each.host, each.ranks) for each in parts.cost.hosts] == [("a", (0, 1)), ("b", (2, 3))]
    assert not parts.cost.fetches and plain.cost.fetches and not plain.cost.hosts
    assert any("a answered for its own ranks 0-1" in line for line in parts.cost.lines())


@pytest.mark.parametrize("sql", [each for each in QUERIES if is_decomposed(each)])
def test_queries_of_every_kind(job: Connection, sql: str) -> None:
    parts = query(job, ALWAYS, sql)
    assert parts.cost.hosts
    require_equal(parts, query(job, NEVER, sql))


NUMBERS = st.sampled_from(["duration", "seq", "step", "allocated", "duration * 1000", "step % 7", "start_ns // 1000",
                           "CAST(seq AS DECIMAL(18, 3))", "CASE WHEN rank = 1 THEN NULL ELSE seq END"])  # fmt: skip
VALUES = st.one_of(NUMBERS, st.sampled_from(["module", "parent", "stage", "time IS NULL", "lower(module)"]))
KEYS = st.sampled_from(["rank", "t.step", "module", "stage", "host", "parent", "step % 5", "upper(stage)", "depth",
                        "coalesce(parent, '-')", "in_eval", "round(duration, 2)"])  # fmt: skip
CONDITIONS = st.sampled_from([
    "step > 20", "rank IN (0, 3)", "module LIKE 'block%'", "parent IS NULL", "duration > 0.004", "rank = 9",
    "step BETWEEN 5 AND 9", "NOT (stage = 'forward')", "t.rank < 2 OR step = 11",
])  # fmt: skip
FILTERS = st.one_of(st.just(""), CONDITIONS.map(lambda each: f" FILTER (WHERE {each})"))
AGGREGATES = st.builds(
    lambda text, kept: text + kept,
    st.one_of(
        st.just("count(*)"), NUMBERS.map("sum({})".format), NUMBERS.map("avg({})".format),
        VALUES.map("min({})".format), VALUES.map("max({})".format), VALUES.map("count({})".format),
    ), FILTERS,
)  # fmt: skip
ITEMS = st.one_of(
    AGGREGATES, st.builds("{} + {} * 2".format, NUMBERS.map("sum({})".format), NUMBERS.map("count({})".format)),
    st.builds("coalesce({}, 0)".format, NUMBERS.map("avg({})".format)),
)  # fmt: skip


@st.composite
def queries(draw: Any) -> str:
    grouped = draw(st.lists(KEYS, max_size=3, unique=True))
    items = draw(st.lists(ITEMS, min_size=1, max_size=4))
    chosen = [*grouped, *(f"{item} AS x{place}" for place, item in enumerate(items))]
    where = draw(st.lists(CONDITIONS, max_size=2))
    sql = f"SELECT {', '.join(draw(st.permutations(chosen)))} FROM python.torch_trace AS t"
    sql += f" WHERE {' AND '.join(f'({each})' for each in where)}" if where else ""
    if grouped:
        sql += f" GROUP BY {draw(st.sampled_from(['ALL', ', '.join(grouped)]))}"
    sql += draw(st.sampled_from(["", " HAVING count(*) > 10", " HAVING x0 IS NOT NULL"]))
    return sql + draw(st.sampled_from(["", " ORDER BY x0", " ORDER BY ALL", " ORDER BY ALL DESC NULLS LAST"]))


@given(sql=queries(), open_steps=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_generated_queries(job: Connection, sql: str, open_steps: bool) -> None:
    parts = query(job, ALWAYS, sql, open_steps=open_steps)
    assert parts.cost.hosts and not parts.cost.fetches
    require_equal(parts, query(job, NEVER, sql, open_steps=open_steps))


@pytest.mark.parametrize("table", [table.name for table in TABLES if table.of_each_rank])
def test_every_table_of_each_rank(job: Connection, table: str) -> None:
    sql = f"SELECT rank, pid, count(*), min(start_ns), max(step), max(host), sum(step) FROM {table} GROUP BY ALL"
    if table in ("python.call_trace", "python.op_trace", "python.kernel_trace"):
        sql = f"SELECT count(*) FROM {table}"
    parts = query(job, ALWAYS, sql)
    assert parts.cost.hosts
    require_equal(parts, query(job, NEVER, sql))


def test_a_limit_is_that_of_all_ranks(job: Connection) -> None:
    sql = f"{SUMS} ORDER BY rank DESC, module LIMIT 5 OFFSET 1"
    assert query(job, ALWAYS, sql).table.column("module").equals(query(job, NEVER, sql).table.column("module"))


def test_a_subquery_is_a_constant_first(job: Connection) -> None:
    sql = "SELECT sum(duration) FROM torch_trace WHERE step > (SELECT max(step) - 5 FROM torch_trace)"
    parts = query(job, ALWAYS, sql)
    assert parts.cost.hosts
    require_equal(parts, query(job, NEVER, sql))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(DISTINCT module) FROM python.torch_trace",
        "SELECT sum(duration) OVER () FROM python.torch_trace",
        "SELECT count(*) FROM python.torch_trace JOIN python.step_trace USING (rank, step)",
        "SELECT approx_quantile(duration, 0.5) FROM python.torch_trace",
        "SELECT first(module ORDER BY seq) FROM python.torch_trace",
        "SELECT count(*) FROM python.torch_trace WHERE random() < 2",
        "SELECT count(*) FROM probe.collectives",
        "SELECT count(*) FROM python.nccl_trace",  # which asks agents for Flight Recorders
        "SELECT count(*) FROM python.module_cost",  # which knows the reader's peaks
        "SELECT rank, count(*) FROM python.torch_trace GROUP BY ROLLUP (rank)",
        "SELECT rank, count(*) FROM python.torch_trace GROUP BY 1 LIMIT 2",
        "SELECT sum(duration) AS step FROM python.torch_trace GROUP BY step ORDER BY step",
        "SELECT count(*) FROM python.torch_trace USING SAMPLE 10%",
        "SELECT min(module, 2) FROM python.torch_trace",
        "SELECT count(*) FROM python.torch_trace WHERE repeat(module, 1000) = ''",
        "SELECT count(*) FROM python.torch_trace WHERE time > CAST('2020-01-01' AS TIMESTAMPTZ)",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT 1; SELECT count(*) FROM python.torch_trace",
    ],
)
def test_anything_else_is_answered_from_rows(sql: str) -> None:
    assert not is_decomposed(sql)


def test_what_is_wrong_is_said_as_ever(job: Connection) -> None:
    for sql in ("SELECT sum(module) FROM torch_trace", "SELECT sum(nothing) FROM torch_trace", "SELECT step, count(*) "
                "FROM torch_trace", "SELECT sum(CAST(module AS INTEGER)) FROM torch_trace"):  # fmt: skip
        with pytest.raises(QueryError) as plain:
            query(job, NEVER, sql)
        with pytest.raises(QueryError) as parts:
            query(job, ALWAYS, sql)
        assert parts.value.message == plain.value.message


def test_an_average_of_times_has_no_parts_and_is_answered_from_rows(job: Connection) -> None:
    sql = "SELECT rank, avg(time) FROM python.torch_trace GROUP BY rank"
    result = query(job, ALWAYS, sql)
    assert result.cost.fetches and not result.cost.hosts and len(result) == 4


def test_servers_that_do_not_know_the_message(job: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: Answers, client: Any, id: bytes, request: dict[str, Any]) -> None:
        raise wire.WireError(f"unknown request {request['kind']!r}")

    monkeypatch.setattr(Answers, "take", take)
    result = query(job, ALWAYS, SUMS)
    assert result.cost.fetches and not result.cost.hosts
    # Whichever host declines first: the other one is not waited for.
    assert re.search(r"\b[ab] did not answer for its own ranks: ", "\n".join(result.cost.lines()))


def test_a_host_that_takes_longer_than_its_rows_need(job: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(hosts, "_WANTED_S", 0.0)
    monkeypatch.setattr(hosts, "_SLOWEST", 1e12)
    take, wait, given_up = Answers.take, hosts.Hosts._wait, threading.Event()
    monkeypatch.setattr(Answers, "take", lambda *of: given_up.wait(10.0) and take(*of))
    monkeypatch.setattr(hosts.Hosts, "_wait", lambda *of: wait(*of) or given_up.set())
    result = query(job, ALWAYS, SUMS)
    monkeypatch.undo()
    assert result.cost.fetches and not result.cost.hosts
    for host in "ab":
        assert any(line.startswith(f"{host} did not answer for its own ranks within") for line in result.cost.lines())
    require_equal(query(job, ALWAYS, SUMS), result)


def test_a_host_of_another_version(job: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "__version__", "0.0.1")
    assert not query(job, ALWAYS, SUMS).cost.hosts
    assert host_part.__version__ != "0.0.1"


def test_a_reader_of_a_job_has_rows_alone(played: tuple[Resolved, Path], tmp_path: Path) -> None:
    keys.share(str(played[1]), str(tmp_path / "reader"))
    with Connection(played[0], 20.0, str(tmp_path / "reader")) as job:
        result = query(job, ALWAYS, SUMS)
    assert result.cost.fetches and not result.cost.hosts


def test_where_calls_are_steps_one_process_numbers_them() -> None:
    with two_played_hosts("call") as (resolved, key, _), Connection(resolved, 20.0, str(key)) as job:
        result = query(job, ALWAYS, SUMS)
    assert result.cost.fetches and not result.cost.hosts


def test_a_rank_that_has_ended_is_silent_and_the_others_are_summed_up() -> None:
    with two_played_hosts() as (resolved, key, facts), Connection(resolved, 20.0, str(key)) as job:
        assert query(job, ALWAYS, SUMS).coverage.answered == (0, 1, 2, 3)
        os.kill(facts[1][1]["pid"], signal.SIGKILL)

        told = []

        def summed_up() -> Result | None:  # not yet where its server has not seen that it ended: then rows are fetched
            parts = query(job, ALWAYS, SUMS)
            told.append(parts.cost.lines())
            assert parts.coverage.silent == (3,)
            require_equal(parts, query(job, NEVER, SUMS))
            return parts if parts.cost.hosts else None

        assert [each.ranks for each in until(summed_up, why=lambda: told).cost.hosts] == [(0, 1), (2,)]


def test_a_rank_that_ends_before_its_host_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_played_hosts() as (resolved, key, facts), Connection(resolved, 20.0, str(key)) as job:

        def pinned(rank: Any) -> dict[str, Any]:
            if rank.rank == 3:
                os.kill(facts[1][1]["pid"], signal.SIGKILL)
            return pin(rank)

        monkeypatch.setattr(hosts, "pin", pinned)
        result = query(job, ALWAYS, SUMS)
    assert not result.cost.hosts and result.coverage.silent == (3,)
    assert {*result.column("rank").to_pylist()} == {0, 1, 2}


def test_rows_of_some_ranks_at_a_time_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_part, "_AT_ONCE_BYTES", 1)
    part = host_part.HostPart(wire.CONTROL, 1 << 30)
    with two_played_hosts() as (resolved, key, (facts, _)), Connection(resolved, 20.0, str(key)) as job, closed(part):
        ranks = [rank for rank in job.snapshot().ranks if isinstance(rank, AgentRank) and rank.facts.host == "a"]
        request = {
            "version": __version__, "engine": duckdb.__version__, "open_steps": False, "completed": 3, "most": 1 << 20,
            "ranks": [pin(rank) for rank in ranks], "agents": {str(rank.facts.id): rank.pid for rank in ranks},
            "sql": partial(SUMS),
        }  # fmt: skip
        asked = wire.decode(wire.encode(wire.PART, **request))
        _, data = part.answer(asked, lambda: [address_of(each["pid"], Facts.parse(each)) for each in facts])
        summed_up = pa.ipc.open_stream(data).read_all()
        assert part._source is not None and {scan.rank.rank for scan in part._source.account.scans} == {1}
        assert len(ranks) == 2 and len(part._database.caches.by_log) == 1
    assert {0, 1} <= {value for column in summed_up.columns for value in column.to_pylist()}


@contextmanager
def closed(part: host_part.HostPart) -> Iterator[None]:
    try:
        yield
    finally:
        part.close()
        part._database.close()


def partial(sql: str) -> str:
    with duckdb.connect() as connection:
        taken = decomposed(Statement(connection, sql), TABLES)
    assert taken is not None
    return taken.partial


def test_little_is_fetched_sooner(job: Connection) -> None:
    assert not job.query(SUMS).cost.hosts


def test_much_is_fetched_as_rows(job: Connection) -> None:
    with pytest.raises(QueryError, match="would fetch"):
        query(job, ALWAYS, SUMS, max_fetch=100)
