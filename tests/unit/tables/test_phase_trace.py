"""When a step was in which phase: what python.step_trace adds up, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from fake_agent import ADAM, LINEAR, MODEL, FakeAgent
from hypothesis import given
from hypothesis import strategies as st

from probe.connection import Connection
from probe.derive.phases import PHASES, Intervals
from probe.streams import (
    BLOCKING,
    ENGINE,
    EVAL,
    EVAL_MODE,
    FIRST_GRAPH,
    FORWARD,
    GRAPH,
    LOG_EVAL,
    OPTIMIZER,
    SAMPLED,
    UNTIMED,
)

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
END = "start_ns + ROUND(duration * 1e9)::BIGINT"
SUMS = ", ".join(f"COALESCE(SUM(duration) FILTER (phase = '{name}'), 0) AS {name}" for name in PHASES)
OF_STEPS = ", ".join(f"COALESCE({name}_duration, 0) AS {name}" for name in PHASES)


def rows(connection: Connection, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in connection.query(sql).to_pylist()]


@pytest.fixture(params=[SAMPLED, 0, SAMPLED | UNTIMED])
def job(request: Any, agent: Make, connected: Connect) -> Connection:
    return of_steps(agent, connected, request.param)


def of_steps(agent: Make, connected: Connect, flags: int, taps: Mapping[str, str] = MappingProxyType({})) -> Connection:
    """Steps of 1,000 ns that end at 900.  A batch and a backward pass each lie across an end; an operation blocks."""
    one = agent()
    one.name_modules()
    one.put(LOG_EVAL, 1, label="1", at="boundary")
    for start in range(0, 5000, 1000):
        one.load(start - 150, start - 50)
        one.operate(start + 20, start + 30, start + 60, BLOCKING)
        one.span(start + 100, start + 200, LINEAR)
        one.span(start + 10, start + 300)
        one.span(start + 300, start + 350, MODEL, FORWARD | EVAL_MODE)
        one.span(start + 400, start + 700, 0, ENGINE)
        one.span(start + 720, start + 760, 1, EVAL)
        one.span(start + 800, start + 900, ADAM, OPTIMIZER)
        one.boundary(start + 890, flags=flags)
    one.facts["step_ns"] = None
    one.facts["taps"].update(taps)
    return connected(one)


def test_a_replay_of_a_graph_is_in_the_phase_around_it(agent: Make, connected: Connect) -> None:
    one = agent()
    for start in range(0, 5000, 1000):
        one.span(start + 705, start + 715, FIRST_GRAPH - 1, GRAPH)
        one.span(start + 820, start + 860, FIRST_GRAPH - 1, GRAPH)
        one.span(start + 800, start + 900, ADAM, OPTIMIZER)
        one.boundary(start + 890)
    told = connected(one)
    assert rows(told, "SELECT COUNT(*) FROM python.phase_trace WHERE phase IS NULL") == [(0,)]
    whole = rows(told, "SELECT optimizer_duration FROM python.step_trace WHERE duration IS NOT NULL AND step > 0")
    assert whole and {round(1e9 * duration) for (duration,) in whole} == {100}


def test_the_rows_of_a_step_add_up_to_its_phases(job: Connection) -> None:
    whole = f"SELECT step, {OF_STEPS} FROM python.step_trace WHERE duration IS NOT NULL"
    parts = (
        f"SELECT step, {SUMS} FROM (SELECT step FROM ({whole})) LEFT JOIN python.phase_trace USING (step) GROUP BY 1"
    )
    expected = rows(job, f"{whole} ORDER BY 1")
    assert np.array(rows(job, f"{parts} ORDER BY 1")) == pytest.approx(np.array(expected)) and len(expected) == 4


@pytest.mark.parametrize(
    ("tap", "lost"), [("loader", {"data"}), ("forward", {"forward", "validation"}), ("collectives", {"comm"})]
)
def test_a_phase_whose_tap_is_off_has_no_rows(agent: Make, connected: Connect, tap: str, lost: set[str]) -> None:
    def phases(taps: dict[str, str]) -> set[str]:
        connection = of_steps(agent, connected, SAMPLED, taps)
        return {phase for (phase,) in rows(connection, "SELECT DISTINCT phase FROM python.phase_trace")}

    assert phases({}) == set(PHASES) and phases({tap: "off: broken"}) == set(PHASES) - lost


def test_rows_follow_each_other_and_stay_in_their_step(job: Connection) -> None:
    found = rows(job, f"SELECT start_ns, {END}, step, phase FROM python.phase_trace WHERE step < 5 ORDER BY 1")
    assert all(end <= start for (_, end, *_), (start, *_) in pairwise(found))
    assert all(1000 * step - 100 <= start < end <= 1000 * step + 900 for start, end, step, _ in found)


@pytest.mark.parametrize(
    ("flags", "missing"),
    [(SAMPLED, set()), (0, {"forward", "validation"}), (SAMPLED | UNTIMED, {*PHASES})],
)
def test_a_phase_has_rows_where_it_is_known(agent: Make, connected: Connect, flags: int, missing: set[str]) -> None:
    found = rows(of_steps(agent, connected, flags), "SELECT DISTINCT phase FROM python.phase_trace WHERE step < 5")
    assert {phase for (phase,) in found} == {*PHASES} - missing


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=5), st.sets(st.integers(0, 40)))
def test_intervals_are_cut_at_moments(lengths: list[tuple[int, int]], moments: set[int]) -> None:
    at, found = 0, []
    for gap, length in lengths:
        found.append((at + gap, at + gap + length))
        at += gap + length
    start, end = np.array(found, np.int64).reshape(-1, 2).T
    pieces = Intervals(start, end, np.arange(len(start))).cut_at(np.array(sorted(moments), np.int64))
    covered = {
        (moment, kind)
        for begin, until, kind in zip(*(each.tolist() for each in (pieces.start, pieces.end, pieces.kind)), strict=True)
        for moment in range(begin, until)
    }
    assert covered == {(moment, kind) for kind, (begin, until) in enumerate(found) for moment in range(begin, until)}
    assert len(pieces.start) == len(found) + sum(begin < cut < until for cut in moments for begin, until in found)
