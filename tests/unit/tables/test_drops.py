"""What retention has taken: counted exactly, and never more memory than it allows."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import FakeAgent
from listed_source import EndingSource, ListedSource

from probe.agent.storage.rows import Stream
from probe.connection import Connection
from probe.host import agent_memory
from probe.host.facts import Facts, StreamLayout
from probe.query.database import Database
from probe.snapshot.log import Log
from probe.snapshot.memory_source import MemorySource
from probe.snapshot.snapshot import Snapshot
from probe.snapshot.source import Rank
from probe.streams import ON_DEMAND, PROFILE_NODES, SPANS, STREAMS
from probe.tables import TABLES
from probe.tables.probe.drops import TABLE

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]


def drops(connection: Connection, stream: str) -> dict[str, Any]:
    sql = f"SELECT * EXCLUDE (host, pid), epoch_us(oldest_time) AS oldest_us FROM probe.drops WHERE stream = '{stream}'"
    (row,) = connection.query(sql).to_pylist()
    return dict(row)


def test_every_stream_of_every_rank_has_a_row(agent: Make, connected: Connect) -> None:
    connection = connected(agent(0, world_size=2), agent(1, world_size=2))
    rows = connection.query("SELECT rank, stream, rows, kept, dropped, oldest_time FROM probe.drops").to_pylist()
    assert sorted((row.pop("rank"), row.pop("stream")) for row in rows) == sorted(
        (rank, stream) for rank in (0, 1) for stream in STREAMS if stream not in ON_DEMAND
    )
    assert all(row == {"rows": 0, "kept": 0, "dropped": 0, "oldest_time": None} for row in rows)


def test_an_hour_of_rows_stays_within_retention_and_each_drop_is_counted(agent: Make, connected: Connect) -> None:
    one = agent()
    stream, start, apart = one.streams[SPANS], 1_000_000_000, 20_000_000  # 50 rows a second
    for row in range(3600 * 50):
        one.span(start + row * apart, start + row * apart + 5)
    now = one.now()
    one.now = lambda: now  # type: ignore[method-assign]
    found = drops(connected(one), SPANS)
    assert (found["rows"], found["kept"], found["dropped"]) == (180_000, stream.capacity, 180_000 - stream.capacity)
    assert found["retention_mb"] == len(stream.buffer) / (1 << 20) <= 1.6
    kept = os.stat(agent_memory.descriptors(os.getpid())[SPANS]).st_blocks * 512
    assert kept <= found["retention_mb"] * (1 << 20)
    oldest = start + found["dropped"] * apart
    assert found["oldest_us"] == (oldest + now["wall_ns"] - now["monotonic_ns"]) // 1000


def test_the_oldest_time_fetches_only_the_oldest_rows(agent: Make, connected: Connect) -> None:
    one = agent()
    for at in range(10_000):
        one.span(at, at + 1)
    connection = connected(one)
    one.requests.clear()
    drops(connection, SPANS)
    scans = [request for request in one.requests if request["kind"] == "scan" and request["stream"] == SPANS]
    assert [(scan["first"], scan["last"]) for scan in scans] == [(1, 2048)]
    one.requests.clear()
    connection.query("SELECT stream, dropped FROM probe.drops")
    assert "scan" not in {request["kind"] for request in one.requests}


def test_rows_without_a_time_have_no_oldest_one(agent: Make, connected: Connect) -> None:
    one = agent()
    one.streams[PROFILE_NODES] = stream = Stream(PROFILE_NODES, STREAMS[PROFILE_NODES], 1 << 20)
    stream.append(0, 1, 12)
    one.facts["streams"][PROFILE_NODES] = {"slots": list(stream.slots), "chunks": stream.chunks}
    found = drops(connected(one), PROFILE_NODES)
    assert (found["rows"], found["oldest_time"]) == (1, None)


def test_drops_of_a_silent_process_are_shown_too(agent: Make) -> None:
    one = agent()
    for at in range(one.streams[SPANS].capacity + 7):
        one.span(at, at + 1)
    one.publish()
    job = Snapshot([MemorySource(os.getpid())])
    query = Database(TABLES)
    (row,) = query.run("SELECT dropped, oldest_time FROM probe.drops WHERE stream = 'spans'", job).to_pylist()
    query.close()
    assert row["dropped"] == 7 and row["oldest_time"] is not None


@pytest.mark.parametrize(("kind", "expected"), [(ListedSource, [3, 1]), (EndingSource, [3])])
def test_a_rank_that_is_read_from_memory_has_nothing_of_others_read(
    kind: type[ListedSource], expected: list[int]
) -> None:
    streams = {SPANS: StreamLayout(STREAMS[SPANS], 1)}
    answers, silent = (
        Rank(pid, Facts(rank=pid, streams=streams), seq, Log()) for pid, seq in enumerate(({SPANS: 3}, {}))
    )
    told, read = ListedSource({answers: {}}), kind({silent: {SPANS: [[0, 5, 1, 7, 1, 1]]}})
    found = TABLE.derive_job(Snapshot([told, read]))  # type: ignore[misc]
    assert found["rows"].to_pylist() == expected and told.asked == []
