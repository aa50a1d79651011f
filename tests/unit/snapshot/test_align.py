"""Ranks that were attached at different moments count the same steps."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from fake_agent import FakeAgent

from probe import protocol as wire
from probe.connection import Connection
from probe.errors import EvalError, Interrupted

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]


@pytest.fixture
def late(agent: Make) -> list[FakeAgent]:
    """Rank 1 was attached 30 steps after rank 0; the group's sequence number is 500 + 2 a step."""
    ranks = [agent(0, world_size=2), agent(1, world_size=2)]
    for step in range(250):
        ranks[0].boundary(1000 * step, 500 + 2 * step)
        if step >= 30:
            ranks[1].boundary(1000 * step, 500 + 2 * step)
    return ranks


def bases(ranks: list[FakeAgent]) -> list[tuple[int, str]]:
    return [(one.facts["step_base"], one.facts["step_source"]) for one in ranks]


def test_the_later_rank_gets_the_offset_of_the_earlier(late: list[FakeAgent], connected: Connect) -> None:
    connected(*late)
    assert bases(late) == [(0, "attach"), (30, "group_seq")]


def test_steps_join_on_step_and_group_seq(late: list[FakeAgent], connected: Connect) -> None:
    for one in late:
        one.name_modules()
        for step in range(40, 249):
            one.span(1000 * step + 1, 1000 * step + 2)
    sql = """SELECT count(*) n, count(*) FILTER (a.start_ns = b.start_ns) same
             FROM python.torch_trace a JOIN python.torch_trace b USING (step) WHERE a.rank = 0 AND b.rank = 1"""
    (row,) = connected(*late).query(sql).to_pylist()
    assert row["n"] == row["same"] >= 200


def stepping(agent: Make, first: int, group_seq: int | None, rank: int) -> FakeAgent:
    """With the numbers of a group that counts from this one, or without a group; its optimizer ends the steps."""
    made = agent(rank, world_size=3, step_ends="")
    made.facts["attached_wall_ns"] = 10 + rank
    for step in range(first, 250):
        made.boundary(1000 * step, -1 if group_seq is None else group_seq + 2 * step)
    return made


STEPS_OF_ALL = "SELECT rank, MAX(step) AS step FROM python.step_trace GROUP BY 1"


def test_ranks_without_a_common_number_are_told(agent: Make, connected: Connect) -> None:
    ranks = [stepping(agent, first, None, rank) for rank, first in enumerate((0, 30, 0))]
    (note,) = connected(*ranks).query(STEPS_OF_ALL).notes
    assert (note.code, note.ranks) == ("unmatched-steps", (1, 2)) and "rank 1-2" in note.text
    assert connected(*ranks).query("SELECT COUNT(*) AS n FROM probe.agents").notes == ()
    ranks[2].facts.update(step_base=1030, step_source="optimizer")
    (note,) = connected(*ranks).query(STEPS_OF_ALL).notes
    assert note.ranks == (0, 1)


def test_they_are_no_longer_once_the_job_has_been_asked_for_its_number(agent: Make, connected: Connect) -> None:
    ranks = [stepping(agent, 0, None, rank) for rank in range(2)]
    job = connected(*ranks)
    assert [note.ranks for note in job.query(STEPS_OF_ALL).notes] == [(1,)]
    for rank in ranks:
        rank.facts.update(step_base=1030, step_source="variable i")
    assert job.query(STEPS_OF_ALL).notes == ()


def test_a_rank_that_trains_beside_one_that_does_not_has_nothing_to_match(agent: Make, connected: Connect) -> None:
    assert connected(agent(0, world_size=2), stepping(agent, 0, None, 1)).query(STEPS_OF_ALL).notes == ()


def test_only_those_are_that_have_none_in_common(agent: Make, connected: Connect) -> None:
    ranks = [stepping(agent, first, seq, rank) for rank, (first, seq) in enumerate(((0, 500), (30, 500), (0, None)))]
    (note,) = connected(*ranks).query(STEPS_OF_ALL).notes
    assert note.ranks == (2,)
    assert connected(*ranks[:2]).query(STEPS_OF_ALL).notes == ()


def test_a_second_connection_changes_nothing(late: list[FakeAgent], connected: Connect) -> None:
    connected(*late)
    late[1].requests.clear()
    connected(*late)
    assert "align" not in [request["kind"] for request in late[1].requests]


def test_the_optimizers_own_number_wins(late: list[FakeAgent], connected: Connect) -> None:
    late[1].facts.update(step_base=1030, step_source="optimizer")
    connected(*late)
    assert bases(late) == [(1000, "group_seq"), (1030, "optimizer")]


@pytest.mark.parametrize("source", ["optimizer", "trainer", "scheduler", "variable i"])
def test_numbers_that_all_ranks_know_from_the_same_source_are_left_alone(
    late: list[FakeAgent], connected: Connect, source: str
) -> None:
    for one, base in zip(late, (7, 37), strict=True):
        one.facts.update(step_base=base, step_source=source)
    connected(*late)
    assert [request["kind"] for request in late[0].requests] == ["hello"]


def test_numbers_that_occur_twice_tell_nothing(agent: Make, connected: Connect) -> None:
    ranks = [agent(0, world_size=2), agent(1, world_size=2)]
    for at, number in enumerate((5, 5, 6, 7)):
        ranks[0].boundary(at, number)
    for at, number in enumerate((5, 6, 7)):
        ranks[1].boundary(at, number)
    connected(*ranks)
    assert bases(ranks)[1] == (1, "group_seq")


def test_a_rank_without_a_common_boundary_is_aligned_later(agent: Make, connected: Connect) -> None:
    ranks = [agent(0, world_size=2), agent(1, world_size=2)]
    for at in range(5):
        ranks[0].boundary(at, at)
    connection = connected(*ranks)
    assert bases(ranks)[1] == (0, "attach")
    ranks[0].boundary(5, 5)
    ranks[1].boundary(5, 5)
    connection.query("SELECT 1")
    assert bases(ranks)[1] == (5, "group_seq")


def test_a_rank_whose_number_stands_still_is_aligned_once_it_goes_on(agent: Make, connected: Connect) -> None:
    """As in a job that talks in subgroups, until all ranks meet."""
    ranks = [agent(0, world_size=2), agent(1, world_size=2)]
    for at in range(9):
        ranks[0].boundary(at, 1)
        if at >= 3:
            ranks[1].boundary(at, 1)
    connection = connected(*ranks)
    assert [link.rank for link in connection._alignment.lost] == [1]
    for one in ranks:
        one.boundary(9, 2)
    connection.query("SELECT 1")
    assert bases(ranks) == [(0, "attach"), (3, "group_seq")] and not connection._alignment.lost


def test_an_interrupted_alignment_is_made_up_for_by_the_next_query(agent: Make, connected: Connect) -> None:
    ranks = [agent(0, world_size=2), agent(1, world_size=2)]
    for at in range(5):
        ranks[0].boundary(at, at)
    ranks[1].boundary(4, 100)  # which no other rank has
    connection = connected(*ranks, timeout=30)
    ranks[0].boundary(5, 5)
    ranks[1].boundary(5, 5)
    handlers = ranks[1].server.handlers
    scan, handlers[wire.SCAN] = handlers[wire.SCAN], lambda *_: connection.cancel()  # boundaries travel in scans
    with pytest.raises(Interrupted):
        connection.query("SELECT 1")
    handlers[wire.SCAN] = scan
    connection.query("SELECT 1")
    assert bases(ranks)[1] == (4, "group_seq")


def test_a_trainers_number_wins_over_a_schedulers_and_that_over_the_attach(
    late: list[FakeAgent], connected: Connect
) -> None:
    late[0].facts.update(step_base=7, step_source="scheduler")
    connected(*late)
    assert bases(late) == [(7, "scheduler"), (37, "group_seq")]
    late[1].facts.update(step_base=1030, step_source="trainer")
    connected(*late)
    assert bases(late) == [(1000, "group_seq"), (1030, "trainer")]


def test_a_variable_that_the_user_has_named_wins_over_the_optimizers_count(
    late: list[FakeAgent], connected: Connect
) -> None:
    late[0].facts.update(step_base=70, step_source="variable i")
    late[1].facts.update(step_base=1030, step_source="optimizer")
    connected(*late)
    assert bases(late) == [(70, "variable i"), (100, "group_seq")]


def test_nothing_is_numbered_or_shown_before_every_rank_knows_its_source(agent: Make, connected: Connect) -> None:
    ranks, now, second = [agent(0, world_size=2), agent(1, world_size=2)], time.monotonic_ns(), 1_000_000_000
    for step in range(4):
        for one in ranks:
            one.boundary(now + 60 * (step - 4) * second, step)  # of a minute each, so that neither is stuck
    ranks[1].facts.update(step_settled=False)
    connection = connected(*ranks, timeout=1.0)
    count = "SELECT count(*) AS n FROM python.step_trace WHERE rank = 0"
    assert connection.query(count).to_pylist() == [{"n": 0}]
    assert bases(ranks) == [(0, "attach"), (0, "attach")]
    ranks[1].facts.update(step_settled=True, step_base=530, step_source="trainer")
    assert connection.query(count).to_pylist() != [{"n": 0}]
    assert bases(ranks) == [(530, "group_seq"), (530, "trainer")]


def spoil(ranks: list[FakeAgent], more: int, start_ns: int = 250_000, steps: int = 60) -> None:
    """Both go on with one operation a step; rank 1 has issued `more` that rank 0 has not, as sends and receives are."""
    for step in range(steps):
        for rank, ahead in zip(ranks, (0, more), strict=True):
            rank.boundary(start_ns + 1000 * step, 2000 + step + ahead)


@pytest.mark.parametrize("more", [1, 2, 50])
def test_numbers_that_differ_later_do_not_shift_a_rank(late: list[FakeAgent], connected: Connect, more: int) -> None:
    connected(*late)
    spoil(late, more)
    connected(*late)
    assert bases(late) == [(0, "attach"), (30, "group_seq")]


def test_nor_do_numbers_that_differ_more_with_each_step(late: list[FakeAgent], connected: Connect) -> None:
    connected(*late)
    for step in range(250, 330):
        for rank, each in zip(late, (1, 2), strict=True):
            rank.boundary(1000 * step, 2000 + each * (step - 250))
    connected(*late)
    assert bases(late) == [(0, "attach"), (30, "group_seq")]


def test_numbers_that_the_clock_contradicts_give_no_offset(agent: Make, connected: Connect) -> None:
    ranks = [agent(0, world_size=2), agent(1, world_size=2)]
    for one in ranks:
        one.facts["distributed"] = True
    spoil(ranks, 20, time.monotonic_ns())
    connection = connected(*ranks, timeout=1.0)
    assert bases(ranks) == [(0, "attach"), (0, "attach")]
    with pytest.raises(EvalError, match="The steps of rank 1 cannot be matched"):
        connection.eval("1")


def test_an_offset_that_the_clock_contradicts_is_found_anew(late: list[FakeAgent], connected: Connect) -> None:
    late[1].facts.update(step_base=90, step_source="group_seq")
    connected(*late)
    assert bases(late) == [(0, "attach"), (30, "group_seq")]


def test_hosts_are_compared_by_their_wall_clocks(agent: Make, connected: Connect) -> None:
    """Monotonic clocks begin when a host boots."""
    second, now = 1_000_000_000, time.monotonic_ns()
    ranks = [agent(0, world_size=2), agent(1, world_size=2, host="there", boot_id="another kernel")]
    ranks[1].now = lambda: {**FakeAgent.now(ranks[1]), "monotonic_ns": time.monotonic_ns() - 5000 * second}
    for step in range(40):
        ranks[0].boundary(now + step * second, step)
        if step >= 3:
            ranks[1].boundary(now + (step - 5000) * second, step + 20)
    connected(*ranks)
    assert bases(ranks)[1] == (0, "attach")
    ranks[1].facts.update(step_base=3, step_source="group_seq")
    connected(*ranks)
    assert bases(ranks)[1] == (3, "group_seq")
