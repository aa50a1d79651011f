"""Steps counted by a variable of the job: on all ranks, or it is an error that says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_agent import FakeAgent, run_snippet

from probe import protocol as wire
from probe.connection import Connection
from probe.errors import SilentError, UsageError

Connect = Callable[..., Connection]


@pytest.fixture
def ranks(agent: Callable[..., FakeAgent]) -> list[FakeAgent]:
    """Two ranks whose variables all are 42."""
    made = [agent(rank, world_size=2) for rank in (0, 1)]
    for one in made:
        one.boundary(0, 0)
        one.on_run = run_snippet
    return made


def numbered(ranks: list[FakeAgent]) -> list[tuple[int, str]]:
    return [(one.facts["step_base"], one.facts["step_source"]) for one in ranks]


def test_all_ranks_count_by_it(ranks: list[FakeAgent], connected: Connect) -> None:
    connected(*ranks).set(step="i")
    assert numbered(ranks) == [(42, "variable i")] * 2


def test_a_setting_that_is_refused_leaves_the_others_as_they_were(ranks: list[FakeAgent], connected: Connect) -> None:
    connection, before = connected(*ranks), numbered(ranks)
    with pytest.raises(UsageError, match="budget_pct=200"):
        connection.set(step="i", budget_pct=200)
    assert numbered(ranks) == before and not any(each["kind"] == wire.ARM for each in ranks[0].requests)


def test_a_rank_that_does_not_answer_is_an_error(ranks: list[FakeAgent], connected: Connect) -> None:
    connection = connected(*ranks, timeout=0.5)
    ranks[1].deaf.add(wire.ALIGN)
    with pytest.raises(SilentError, match=r"Not all ranks count alike: Rank 1 .* does not answer"):
        connection.set(step="i")
    assert [facts.step_source for facts in connection.agents] == ["variable i", ranks[1].facts["step_source"]]
