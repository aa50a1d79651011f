"""Which step a row belongs to, and which steps are shown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from fake_agent import ADAM, LINEAR, MODEL, FakeAgent

from probe.connection import Connection
from probe.host.facts import Facts
from probe.record.sources import HeldMemory
from probe.snapshot.snapshot import Snapshot
from probe.streams import BEGIN, ENGINE, EVAL, FIRST_GRAPH, GRAPH, OPTIMIZER

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
MS = 1_000_000


def rows(connection: Connection, sql: str, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in connection.query(sql, **options).to_pylist()]


def test_a_second_optimizer_after_the_boundary_ends_the_same_step(agent: Make, connected: Connect) -> None:
    one = agent()
    one.name_modules()
    for start in range(0, 4000, 1000):
        one.span(start, start + 300)
        one.span(start + 800, start + 890, ADAM, OPTIMIZER)
        one.boundary(start + 880)
        one.span(start + 900, start + 950, ADAM, OPTIMIZER)
    sql = "SELECT step, stage, count(*) FROM python.torch_trace GROUP BY ALL ORDER BY ALL"
    assert rows(connected(one), sql) == [(s, stage, n) for s in (1, 2, 3) for stage, n in (("forward", 1), ("step", 2))]


def test_a_loop_without_an_optimizer_counts_its_outermost_calls(agent: Make, connected: Connect) -> None:
    one = agent()
    one.name_modules()
    now = time.monotonic_ns()  # or the rank would seem to be stuck
    one.span(now + 5, now + 9, LINEAR)  # the rest of a call that was under way at the attach
    for start in range(now + MS, now + 3001 * MS, 1000 * MS):
        one.span(start + 10, start + 20, LINEAR)
        one.span(start, start + 50, MODEL)
    one.span(now + 3500 * MS, now + 3501 * MS, LINEAR)  # of the call under way now
    sql = "SELECT step, module FROM python.torch_trace ORDER BY ALL"
    assert rows(connected(one), sql) == [(s, name) for s in range(3) for name in ("Model", "linear")]


def test_a_loop_that_only_replays_graphs_counts_the_replays_of_the_first(agent: Make, connected: Connect) -> None:
    one = agent()
    now = time.monotonic_ns()
    for start in range(now, now + 4000 * MS, 1000 * MS):
        for number in (1, 2):
            one.span(start + 100 * number, start + 100 * number + 50, FIRST_GRAPH - number, GRAPH)
    sql = "SELECT step, module, stage FROM python.torch_trace ORDER BY ALL"
    behind = [(step, f"graph {number}", "graph") for step in (1, 2, 3) for number in (1, 2)]
    assert rows(connected(one), sql) == [(0, "graph 1", "graph"), *behind]


class Server:
    """A call of a model every 10 ms, and in it some of a part; the ring holds 32,768 of both."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent, self.calls = agent, 0
        agent.name_modules()
        agent.now = lambda: {**agent.facts, "monotonic_ns": self.at, "wall_ns": 10**18}  # type: ignore[method-assign]

    @property
    def at(self) -> int:
        return self.calls * 10 * MS

    def call(self, times: int, parts: int = 1) -> None:
        for _ in range(times):
            for part in range(1, parts + 1):
                self.agent.span(self.at + part * MS, self.at + part * MS + 5, LINEAR)
            self.agent.span(self.at, self.at + 8 * MS, MODEL)
            self.calls += 1


def numbers(connection: Connection) -> dict[int, int]:
    """The step of each call that is left, by its start."""
    return dict(rows(connection, "SELECT start_ns, step FROM python.torch_trace WHERE module = 'Model'"))


def test_calls_keep_their_numbers_when_the_ring_forgets_those_before_them(agent: Make, connected: Connect) -> None:
    one = Server(agent(ring_bytes=1 << 16))
    one.call(10_000)
    connection = connected(one.agent)
    numbers(connection)
    for parts in (2, 3, 1):
        one.call(7000, parts)
        assert rows(connection, "SELECT step FROM probe.agents") == [(one.calls,)]
        found = numbers(connection)
        assert len(found) > 8000 and all(start == step * 10 * MS for start, step in found.items())
    one.agent.publish()
    with closing(HeldMemory(os.getpid(), Facts.parse(one.agent.now()))) as held:  # as a recorder's last look
        (ended,) = Snapshot([held]).ranks
        assert ended.timeline.running == one.calls


def test_calls_that_nobody_has_seen_are_counted_like_those_that_are_left(agent: Make, connected: Connect) -> None:
    one = Server(agent(ring_bytes=1 << 16))
    one.call(40_000)
    connection = connected(one.agent)
    assert rows(connection, "SELECT step FROM probe.agents") == [(40_000,)]
    one.call(9000, 4)  # of the calls that were seen, none is left
    assert min(numbers(connection).values()) >= 40_000


def test_as_long_as_it_is_not_known_what_ends_a_step_no_call_is_one(agent: Make, connected: Connect) -> None:
    one = agent(step_ends="")  # attached to in a validation, say
    one.name_modules()
    for start in range(0, 4000, 1000):
        one.span(start, start + 50, MODEL)
    for table in ("torch_trace", "step_trace"):
        result = connected(one).query(f"SELECT step FROM python.{table}")
        assert result.to_pylist() == [] and [note.code for note in result.notes] == ["no-steps"]


def test_a_rank_that_is_stuck_shows_the_step_it_is_stuck_in(agent: Make, connected: Connect) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    now = time.monotonic_ns()
    for one in ranks:
        one.name_modules()
        one.train(10, start=now - 6000 * MS, group_seq=0, unit=MS // 10)  # steps of 100 ms
        one.span(now - 4500 * MS, now - 4400 * MS, LINEAR)
    connection = connected(*ranks)
    sql = "SELECT rank, count(*) FROM python.torch_trace WHERE step = 10 GROUP BY rank ORDER BY rank"
    assert rows(connection, sql) == [(0, 1), (1, 1)]
    later = time.monotonic_ns() + 3_600_000 * MS  # or it would be stuck in the next step half a second from now
    ranks[0].boundary(later, 10)
    ranks[0].span(later, later + 1, LINEAR)
    assert rows(connection, sql) == [(1, 1)]


def test_a_step_is_seen_once_every_rank_has_completed_it(agent: Make, connected: Connect) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    now = time.monotonic_ns()
    for one, steps in zip(ranks, (8, 5), strict=True):
        one.name_modules()
        one.train(steps, start=now, group_seq=0, unit=10**6)  # steps of a second, so that nobody is stuck
    sql = "SELECT rank, max(step) FROM python.torch_trace GROUP BY rank ORDER BY rank"
    assert rows(connected(*ranks), sql) == [(0, 4), (1, 4)]
    assert rows(connected(*ranks), sql, open_steps=True) == [(0, 7), (1, 4)]


def test_rows_caused_by_an_eval_bear_its_mark(agent: Make, connected: Connect) -> None:
    one = agent()
    one.name_modules()
    one.boundary(0)
    one.span(20, 30, LINEAR)
    one.span(10, 40, 9000, EVAL)
    one.span(50, 60, LINEAR)
    one.boundary(100)
    sql = "SELECT start_ns, in_eval FROM python.torch_trace ORDER BY ALL"
    assert rows(connected(one), sql) == [(20, True), (50, False)]


def test_modules_stand_where_they_are_called_though_the_attach_fell_into_a_call(
    agent: Make, connected: Connect
) -> None:
    one = agent()
    one.put(2, MODEL, name="Model", type="Model", parent=0, root=MODEL)
    one.put(2, LINEAR, name="linear", type="Linear", parent=0, root=LINEAR)
    one.span(5, 9, LINEAR)
    one.mark(12, LINEAR, BEGIN)
    one.span(10, 20, 0, ENGINE)
    one.train(3, start=1000)
    sql = "SELECT DISTINCT module, parent, depth FROM python.torch_trace WHERE stage = 'backward' ORDER BY depth"
    assert rows(connected(one), sql) == [("Model", None, 0), ("linear", "Model", 1)]


def test_forwards_run_again_stand_where_they_stood_and_their_time_is_theirs(agent: Make, connected: Connect) -> None:
    one = agent()
    one.name_modules()
    for start in range(0, 3000, 1000):
        one.span(start + 100, start + 200, LINEAR)
        one.span(start, start + 300, MODEL)
        one.mark(start + 410, MODEL, BEGIN)
        one.span(start + 420, start + 480, LINEAR)
        one.mark(start + 500, LINEAR, BEGIN)
        one.span(start + 400, start + 700, 0, ENGINE)
        one.boundary(start + 900)
    got = rows(
        connected(one),
        "SELECT module, stage, recompute, parent, depth, micro_step, duration * 1e9, total_duration * 1e9 "
        "FROM python.torch_trace WHERE step = 1 ORDER BY stage, depth, recompute",
    )
    assert [(*row[:6], round(row[6]), round(row[7])) for row in got] == [
        ("Model", "backward", False, None, 0, 0, 40, 240),
        ("linear", "backward", False, "Model", 1, 0, 200, 200),
        ("Model", "forward", False, None, 0, 0, 200, 300),
        ("linear", "forward", False, "Model", 1, 0, 100, 100),
        ("linear", "forward", True, "Model", 1, 0, 60, 60),
    ]
