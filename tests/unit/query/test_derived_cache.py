"""What a connection has made before is what a new one would make, whatever the job has done meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import ADAM, LINEAR, MODEL, FakeAgent

from probe.connection import Connection
from probe.query import derived_cache
from probe.streams import ENGINE, FORWARD, LOG_MODULE, OPTIMIZER

MS = 1_000_000
Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
ALL = "SELECT * EXCLUDE (time) FROM python.torch_trace ORDER BY ALL"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few rows are worth to be kept."""
    monkeypatch.setattr(derived_cache, "WORTH_CACHING", 10)
    monkeypatch.setattr(derived_cache, "ROWS_A_PIECE", 25)


class Job:
    """One rank whose clock stands at its last step, so that it never seems stuck."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent, self.at = agent, 0
        agent.name_modules()
        agent.now = lambda: {**agent.facts, "monotonic_ns": self.at, "wall_ns": 10**18}  # type: ignore[method-assign]

    def train(self, steps: int) -> None:
        self.at = self.agent.train(steps, self.at, unit=MS // 10)


def rows(connection: Connection, sql: str = ALL) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = connection.query(sql).to_pylist()
    return found


def kept(connection: Connection) -> Any:
    """As the next query finds it."""
    assert connection.database is not None
    (found,) = connection.database.caches.by_log.values()
    cache = found["python.torch_trace"]
    found["python.torch_trace"] = cache = cache.filed() if isinstance(cache, derived_cache.Pending) else cache
    return cache


@pytest.mark.slow
def test_a_job_that_goes_on(agent: Make, connected: Connect) -> None:
    one, chance = Job(agent()), random.Random(3)
    living = connected(one.agent)
    for _ in range(12):
        one.train(chance.randint(0, 30))
        assert rows(living) == rows(connected(one.agent))
        some = (
            f"SELECT step, count(*) FROM python.torch_trace WHERE step > {chance.randint(0, 200)} GROUP BY 1 ORDER BY 1"
        )
        assert rows(living, some) == rows(connected(one.agent), some)
    assert len(kept(living).pieces) > 5


def test_rows_from_the_shelf_are_not_fetched_and_not_made_again(agent: Make, connected: Connect) -> None:
    one = Job(agent())
    one.train(200)
    living = connected(one.agent)
    rows(living)
    laid_by = kept(living).pieces[0][1]
    before = living.account.scans[-1].asked["last"]
    one.train(3)
    rows(living)
    assert kept(living).pieces[0][1] is laid_by
    asked = [scan["first"] for scan in one.agent.requests if scan["kind"] == "scan" and scan["stream"] == "marks"]
    assert asked == [1, before + 1]


def test_a_call_that_ends_long_after_it_began_is_the_parent_of_what_it_called(agent: Make, connected: Connect) -> None:
    one = Job(agent())
    living = connected(one.agent)
    one.train(40)
    begin = one.at - 39 * 100 * MS
    before = rows(living)
    one.agent.put(LOG_MODULE, 3001, name="Trainer", type="Trainer", parent=0, root=3001)
    rows(living)
    one.agent.span(begin, one.at + MS, 3001, FORWARD)
    one.at += 2 * MS
    one.train(1)
    after = rows(living)
    assert after == rows(connected(one.agent)) != before
    assert {row["depth"] for row in after if row["module"] == "Model"} == {0, 1}


def test_a_module_that_gets_its_name_later(agent: Make, connected: Connect) -> None:
    one = Job(agent())
    one.train(40)
    living = connected(one.agent)
    rows(living)
    one.agent.put(LOG_MODULE, LINEAR, name="head", type="Linear", parent=MODEL, root=MODEL)
    one.train(1)
    assert {row["module"] for row in rows(living)} == {"Model", "head", "AdamW"}


def test_numbers_that_turn_out_to_be_others(agent: Make, connected: Connect) -> None:
    one = Job(agent())
    one.train(40)
    living = connected(one.agent)
    rows(living)
    one.agent.facts["step_base"] = 1000
    one.train(1)
    assert {row["step"] // 1000 for row in rows(living)} == {1}


def test_steps_below_zero_stay(agent: Make, connected: Connect) -> None:
    """The job's own count began anew before the attach: the agent's is ahead of it."""
    one = Job(agent(step_base=-30))
    one.train(40)
    living = connected(one.agent)
    first = rows(living)
    assert first[0]["step"] < 0 and kept(living).pieces
    one.train(1)
    assert rows(living)[: len(first)] == first
    below = "SELECT DISTINCT step FROM python.torch_trace WHERE step BETWEEN -20 AND -15 ORDER BY step"
    assert [row["step"] for row in rows(living, below)] == [*range(-20, -14)]


@pytest.mark.slow
def test_steps_that_the_agent_has_forgotten_are_not_shown(agent: Make, connected: Connect) -> None:
    one = Job(agent())
    living = connected(one.agent)
    counts = "SELECT step, count(*) n FROM python.torch_trace GROUP BY 1 ORDER BY 1"
    for _ in range(6):
        one.train(3000)  # the ring of spans holds some 8,000 steps
        fresh, kept = rows(connected(one.agent), counts), rows(living, counts)
        assert {row["n"] for row in kept} == {5}
        assert kept[-1] == fresh[-1] and 0 <= kept[0]["step"] - fresh[0]["step"] <= 2


def test_steps_that_are_not_sampled(agent: Make, connected: Connect) -> None:
    one = Job(agent())
    living = connected(one.agent)
    for block in range(12):
        if block % 3 == 0:
            one.train(10)
            continue
        for _ in range(10):
            one.agent.span(one.at + 40 * MS, one.at + 70 * MS, 0, ENGINE)
            one.agent.span(one.at + 80 * MS, one.at + 90 * MS, ADAM, OPTIMIZER)
            one.agent.boundary(one.at + 89 * MS, flags=0)
            one.at += 100 * MS
        assert rows(living) == rows(connected(one.agent))
    assert len({row["step"] for row in rows(living)}) == 39
