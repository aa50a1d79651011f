"""What a query asks of whom: the ranks and steps that may pass its filters, and no more than is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import FakeAgent

from probe import protocol as wire
from probe.connection import MAX_FETCH, Connection
from probe.diagnose import watch
from probe.errors import ProbeError, QueryError, SilentError
from probe.snapshot.log import START
from probe.snapshot.snapshot import Snapshot
from probe.streams import COLLECTIVES, SPANS, STEPS

MS = 1_000_000
Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]


def trained(agent: FakeAgent, steps: int = 3000) -> FakeAgent:
    agent.name_modules()
    at, agent.facts["attached_ns"] = agent.train(steps, unit=MS // 10), 0
    agent.now = lambda: {**agent.facts, "monotonic_ns": at, "wall_ns": 10**18}  # type: ignore[method-assign]
    return agent


def sent(connection: Connection) -> dict[tuple[int, str], int]:
    return {(scan.rank.rank, scan.stream): scan.rows for scan in connection.account.scans}


def value(connection: Connection, sql: str, **options: Any) -> Any:
    (row,) = connection.query(sql, **options).to_pylist()
    return next(iter(row.values()))


def test_the_last_steps_are_all_that_travels_for_a_question_about_them(agent: Make, connected: Connect) -> None:
    connection = connected(trained(agent()))
    last = "SELECT max(step) FROM python.torch_trace"
    assert value(connection, f"SELECT count(*) FROM torch_trace WHERE step > ({last}) - 10") == 50
    assert sent(connection)[0, "spans"] < 200 and sent(connection)[0, "marks"] < 150


def test_a_query_with_a_step_in_the_past_fetches_from_there_on(agent: Make, connected: Connect) -> None:
    connection = connected(trained(agent()))
    assert value(connection, "SELECT count(*) FROM torch_trace WHERE step >= 2900 AND step < 2910") == 50
    assert sent(connection)[0, "spans"] < 600


def test_ranks_that_a_filter_refuses_are_not_asked(agent: Make, connected: Connect) -> None:
    connection = connected(*(trained(agent(rank), 50) for rank in range(4)))
    assert value(connection, "SELECT count(DISTINCT rank) FROM torch_trace WHERE rank IN (1, 3)") == 2
    assert {rank for rank, stream in sent(connection) if stream == "spans"} == {1, 3}
    assert value(connection, "SELECT count(*) FROM dataloader_trace WHERE rank = 2") == 0
    assert {rank for rank, stream in sent(connection) if stream == "loads"} <= {2}


def test_what_has_been_fetched_does_not_travel_again(agent: Make, connected: Connect) -> None:
    one = trained(agent(), 100)
    connection = connected(one)
    for _ in range(2):
        assert value(connection, "SELECT count(*) FROM torch_trace") == 495
    assert sent(connection) == {}
    assert value(connection, "SELECT count(*) FROM step_trace") == 99


def test_more_than_is_allowed_is_refused_before_it_travels(agent: Make, connected: Connect) -> None:
    ranks = [trained(agent(rank), 1000) for rank in range(2)]
    connection = connected(*ranks)
    with pytest.raises(QueryError) as refused:
        connection.query("SELECT count(*) FROM torch_trace", max_fetch=300_000)
    assert refused.value.code == "max-fetch"
    assert str(refused.value).startswith("The query would fetch about 0.5 MB from 2 ranks, more than 0.3 MB.")
    assert "--max-fetch 1GB" in refused.value.hint
    assert {scan["stream"] for one in ranks for scan in one.requests if scan["kind"] == "scan"} == {"steps"}
    assert value(connection, "SELECT count(*) FROM torch_trace WHERE step > 990", max_fetch=300_000) == 90
    assert value(connection, "SELECT count(*) FROM torch_trace", max_fetch=None) == 9990


def test_an_explanation_names_every_rank_and_what_it_sent(agent: Make, connected: Connect) -> None:
    connection = connected(*(trained(agent(rank), 10) for rank in range(2)))
    explanation = connection.query("SELECT count(*) FROM torch_trace").cost.lines()
    lines = [line.split() for line in explanation]
    assert lines[0] == ["rank", "stream", "rows", "MB", "ms"]
    assert [line[:3] for line in lines[1:7]] == [
        [rank, stream, rows] for rank in "01" for stream, rows in (("marks", "30"), ("spans", "40"), ("steps", "10"))
    ]
    assert lines[7][:2] == ["fetched", "160"] and "python.torch_trace" in explanation[8]


def test_another_agent_at_the_same_address_is_read_from_its_beginning(agent: Make, connected: Connect) -> None:
    """A job that was detached, and attached again at the same port."""
    one = trained(agent(), 100)
    connection = connected(one)
    value(connection, "SELECT count(*) FROM torch_trace")
    one.requests.clear()
    one.facts["id"] = "another"
    value(connection, "SELECT count(*) FROM torch_trace")
    asked = {(each["kind"], each.get("stream")): each["first"] for each in one.requests if "first" in each}
    assert asked[wire.SCAN, SPANS] == asked[wire.SCAN, STEPS] == 1 and asked[wire.LOG, None] == START


def numbers(snapshot: Snapshot, stream: str = SPANS) -> list[int]:
    found: list[int] = snapshot.ranks[0].rows(stream)["seq"].tolist()
    return found


@pytest.mark.parametrize("stream", [SPANS, COLLECTIVES], ids=["cached", "changed in place"])
@pytest.mark.parametrize("before", [0, 10], ids=["first query", "later query"])
def test_a_snapshot_keeps_to_its_moment_after_a_later_query(
    stream: str, before: int, agent: Make, connected: Connect
) -> None:
    def work(steps: int) -> None:
        at = one.train(steps, one.facts["last_step_ns"] or 0, unit=MS // 10)
        for each in range(4 * steps):
            one.operate(at + each, at + each, at + each + 1)

    one = agent()
    one.name_modules()
    connection = connected(one)
    if before:
        work(before)
        assert numbers(connection.snapshot(), stream)[-1] == 4 * before
    work(20)
    old = connection.snapshot()
    last = old.ranks[0].last_seq[stream]
    work(30)
    assert numbers(connection.snapshot(), stream)[-1] > last
    assert numbers(old, stream) == list(range(1, last + 1))
    work(5)  # what an older snapshot has read is not taken for all that there is
    new = connection.snapshot()
    assert numbers(new, stream) == list(range(1, new.ranks[0].last_seq[stream] + 1))


def test_a_snapshot_of_an_agent_that_another_one_replaced_gives_none_of_its_rows(
    agent: Make, connected: Connect
) -> None:
    one = trained(agent(), 100)
    connection = connected(one)
    old, asked = connection.snapshot(), connection.snapshot()
    one.facts["id"] = "another"
    count = value(connection, "SELECT count(*) FROM torch_trace")
    with pytest.raises(SilentError, match="attached again"):
        numbers(old)
    assert asked.ask(wire.FLIGHT) == {} and [each.rank for each in asked.silent] == [0]
    assert value(connection, "SELECT count(*) FROM torch_trace") == count


def test_a_share_of_a_ring_that_has_gone_round_is_estimated_by_what_the_ring_has(
    agent: Make, connected: Connect
) -> None:
    """It has the last tenth of what there was since the attach: half of that is a twentieth of the time."""
    one = trained(agent(ring_bytes=1 << 16), 30_000)
    connection = connected(one)
    oldest = value(connection, "SELECT min(step) FROM torch_trace")
    assert oldest > 1000
    middle = (30_000 + oldest) // 2
    connection = connected(one)
    assert value(connection, f"SELECT count(*) FROM torch_trace WHERE step > {middle}") > 1000
    (scan,) = (each for each in connection.account.scans if each.stream == SPANS)
    assert 0.5 * scan.bytes < scan.estimate < 2 * scan.bytes


def test_what_watches_a_job_fetches_its_last_steps_alone(agent: Make, connected: Connect) -> None:
    connection = connected(trained(agent()), trained(agent(1, world_size=2)))
    assert watch._seen(connection) == (2999, pytest.approx(0.1), 40)
    assert sum(rows for (_, stream), rows in sent(connection).items() if stream == SPANS) < 600


def test_a_diagnosis_may_fetch_what_it_needs_of_many_ranks(
    agent: Make, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, allowed = connected(trained(agent(), 30)), list[Any]()
    snapshot = Connection._snapshot

    def seen(self: Connection, open_steps: bool, max_fetch: float | None) -> Snapshot:
        allowed.append(max_fetch)
        return snapshot(self, open_steps, max_fetch)

    monkeypatch.setattr(Connection, "_snapshot", seen)
    with pytest.raises(ProbeError):
        connection.stragglers()  # of one rank
    assert allowed and not any(allowed)
    connection.query("SELECT 1")
    assert allowed[-1] == MAX_FETCH
