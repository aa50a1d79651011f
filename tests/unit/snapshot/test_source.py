"""Rows from anywhere: what a Source takes to be queried, and what only agents can do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fake_agent import ADAM, MODEL, THREAD, FakeAgent
from listed_source import ListedSource

from probe.client import endpoints
from probe.client.endpoints import Address, Form, Resolved
from probe.connection import Connection, connect
from probe.errors import SilentError, UsageError
from probe.host.facts import Facts
from probe.query.database import Database
from probe.snapshot.log import Log
from probe.snapshot.snapshot import Snapshot
from probe.snapshot.source import Rank, SilentRank, Source
from probe.streams import FORWARD, SAMPLED, SPANS, STEPS
from probe.tables import TABLES

MS = 1_000_000
Make = Callable[..., FakeAgent]


def rank(number: int, steps: int = 4) -> tuple[Rank, dict[str, list[tuple[int, ...]]]]:
    """A rank with one call of its model in each step, and its rows."""
    log = Log()
    log.modules[MODEL] = {"name": "Model", "type": "Model", "parent": 0, "root": MODEL}
    facts = Facts(rank=number, world_size=2, host="far", monotonic_ns=steps * 10 * MS, wall_ns=10**18, anchor="AdamW")
    ends = [(step + 1) * 10 * MS for step in range(steps)]
    spans = [(end - 8 * MS, end - 6 * MS, MODEL, THREAD, FORWARD, seq) for seq, end in enumerate(ends, start=1)]
    boundaries = [(end, seq - 1, -1, ADAM, 0, 0, THREAD, SAMPLED, seq) for seq, end in enumerate(ends, start=1)]
    return Rank(4000 + number, facts, {}, log), {SPANS: spans, STEPS: boundaries}


class Recording(ListedSource):
    """Two ranks, whatever its place is."""

    def __init__(self, place: str = "") -> None:
        super().__init__(dict([rank(0), rank(1)]))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes recording:PLACE an endpoint, in the one line that this takes."""
    form = Form(
        "recording:PLACE", r"recording:(.+)", lambda match, _: [Address(match[1], source=f"{__name__}:Recording")]
    )
    monkeypatch.setattr(endpoints, "_FORMS", [*endpoints._FORMS, form])


def queried(sources: list[Source], sql: str) -> list[dict[str, Any]]:
    database = Database(TABLES)
    found: list[dict[str, Any]] = database.run(sql, Snapshot(sources)).to_pylist()
    database.close()
    return found


def test_sql_runs_over_rows_that_no_agent_has() -> None:
    sql = "SELECT rank, host, step, module, duration FROM python.torch_trace WHERE rank = 1 ORDER BY step"
    assert queried([Recording()], sql) == [
        {"rank": 1, "host": "far", "step": step, "module": "Model", "duration": 0.002} for step in (1, 2, 3)
    ]


def test_ranks_of_several_sources_are_one_snapshot() -> None:
    sources: list[Source] = [ListedSource(dict([rank(number)])) for number in (1, 0)]
    assert queried(sources, "SELECT rank, max(step) AS last FROM python.step_trace GROUP BY 1 ORDER BY 1") == [
        {"rank": 0, "last": 3},
        {"rank": 1, "last": 3},
    ]


def test_a_stream_is_fetched_once_for_all_ranks() -> None:
    source = Recording()
    both = Snapshot([source]).ranks
    for one in both * 2:
        one.rows(SPANS), one.oldest_rows(SPANS), one.rows(STEPS)
    assert source.asked == [SPANS, STEPS]


class Fading(ListedSource):
    """Its second rank falls silent when its rows are wanted."""

    def rows(self, stream: str, since_ns: Mapping[Rank, int | None]) -> dict[Rank, Any]:
        for one in list(since_ns)[1:]:
            one.leave(SilentError("It went."))
        return super().rows(stream, {one: since_ns[one] for one in since_ns if not one.left})


def test_a_rank_that_leaves_on_the_way_is_named_and_left_out() -> None:
    snapshot = Snapshot([Fading(dict([rank(0), rank(1)]))])
    assert len(snapshot.ranks[0].rows(STEPS)) == 4
    assert [one.rank for one in snapshot.ranks] == [0]
    assert [(one.rank, one.pid, one.why) for one in snapshot.silent] == [(1, 4001, "It went.")]


class Silent(ListedSource):
    """One rank, which does not answer."""

    def __init__(self, instead: Source | None) -> None:
        super().__init__({})
        self.one = SilentRank(1, 4001, SilentError("It is mute."), instead)

    def ranks(self) -> Any:
        return [self.one]


def test_a_silent_rank_is_read_from_elsewhere_where_that_can_be() -> None:
    snapshot = Snapshot([Silent(ListedSource(dict([rank(1)]))), ListedSource(dict([rank(0)]))])
    assert [one.rank for one in snapshot.ranks] == [0, 1] and snapshot.silent == []
    assert [one.why for one in snapshot.read] == ["It is mute."]
    with pytest.raises(SilentError, match="It is mute"):
        Snapshot([Silent(None)])


def test_a_recording_is_an_endpoint_that_can_be_queried(recorded: None) -> None:
    with connect("recording:there") as connection:
        assert [facts.rank for facts in connection.agents] == [0, 1]
        counts = connection.query("SELECT rank, count(*) AS calls FROM python.torch_trace GROUP BY 1 ORDER BY 1")
        assert counts.to_pylist() == [{"rank": 0, "calls": 3}, {"rank": 1, "calls": 3}]
        assert connection.notes == []


@pytest.mark.parametrize(
    "act",
    [
        lambda connection: connection.eval("1"),
        lambda connection: connection.set(sample=1),
        lambda connection: connection.detach(),
        lambda connection: connection.stacks(),
        lambda connection: connection.hang(),
    ],
    ids=["eval", "set", "detach", "stacks", "hang"],
)
def test_what_takes_an_agent_is_refused_where_there_is_none(act: Callable[[Connection], Any], recorded: None) -> None:
    with connect("recording:there") as connection, pytest.raises(UsageError, match="recording:there is a recording"):
        act(connection)


def test_recorded_ranks_can_be_beside_those_that_run(agent: Make, recorded: None) -> None:
    one = agent(2, world_size=3)
    running = Address(one.server.endpoint, os.getpid(), Facts.parse(one.now()))
    with Connection(Resolved("both", [Address("there", source=f"{__name__}:Recording"), running])) as connection:
        ranks = connection.query("SELECT rank FROM probe.agents ORDER BY rank").to_pylist()
        assert [row["rank"] for row in ranks] == [0, 1, 2]
        assert set(connection.stacks()) == {2}
