"""What a step's time went into, and when a step is over."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fake_agent import ADAM, LINEAR, MODEL, FakeAgent
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.connection import Connection
from probe.derive.phases import Intervals, phase_times
from probe.protocol import NO_GROUP, NO_LOADERS
from probe.snapshot.rows import Rows
from probe.snapshot.timeline import step_ends
from probe.streams import (
    BARE,
    BLOCKING,
    ENGINE,
    EVAL,
    EVAL_MODE,
    FAILED,
    FORWARD,
    ITERATOR,
    LOG_GROUP,
    NO_GRAD,
    OPTIMIZER,
    SAMPLED,
    SPANS,
    STREAMS,
    UNTIMED,
    WAIT,
)

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
PHASES = ("data", "forward", "backward", "optimizer", "eval", "other")
COMM = "round(comm_duration * 1e9)::BIGINT"
ALL = ", ".join(f"round({name}_duration * 1e9)::BIGINT" for name in PHASES)


def rows(connection: Connection, sql: str, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in connection.query(sql, **options).to_pylist()]


def split(connection: Connection, step: int = 1, **options: Any) -> tuple[Any, ...]:
    """(duration, then the phases) of a step, in ns."""
    sql = f"SELECT round(duration * 1e9)::BIGINT, {ALL} FROM python.step_trace WHERE step = {step}"
    (row,) = rows(connection, sql, **options)
    return row


def trained(agent: Make, inside: Callable[[FakeAgent, int], None], **boundary: Any) -> FakeAgent:
    """Three steps of 1,000 ns that end at 900, with what `inside` puts between."""
    one = agent()
    one.name_modules()
    for start in range(0, 3000, 1000):
        inside(one, start)
        one.span(start + 800, start + 900, ADAM, OPTIMIZER)
        one.boundary(start + 890, **boundary)
    return one


def test_a_steps_time_is_split_into_its_phases(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.load(start - 50, start)
        one.span(start + 100, start + 200, LINEAR)
        one.span(start + 10, start + 300)
        one.span(start + 400, start + 700, 0, ENGINE)

    assert split(connected(trained(agent, inside))) == (1000, 50, 290, 300, 100, 0, 260)


def test_a_phase_inside_another_belongs_to_the_outer_one(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.load(start + 20, start + 30)
        one.span(start + 10, start + 100)  # a forward that loads
        one.span(start + 210, start + 220)
        one.span(start + 200, start + 300, 0, ENGINE)  # a pass that runs a forward again
        one.span(start + 410, start + 420)
        one.load(start + 430, start + 440)
        one.span(start + 400, start + 500, 1, EVAL)
        one.span(start + 810, start + 820)  # a closure's: itself
        one.span(start + 830, start + 850, 0, ENGINE)

    assert split(connected(trained(agent, inside))) == (1000, 0, 100, 120, 70, 100, 610)


def test_calls_that_train_nothing_are_validation(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 10, start + 110)
        one.span(start + 120, start + 150, MODEL, FORWARD | NO_GRAD)
        one.span(start + 200, start + 300, MODEL, FORWARD | EVAL_MODE)
        one.span(start + 310, start + 320, LINEAR, FORWARD | EVAL_MODE)  # one that is always in eval mode trains in it
        one.span(start + 330, start + 350, LINEAR, FORWARD | EVAL_MODE | NO_GRAD)

    connection = connected(trained(agent, inside))
    assert split(connection) == (1000, 0, 110, 0, 100, 0, 640)
    sql = "SELECT round(validation_duration * 1e9)::BIGINT FROM python.step_trace WHERE step = 1"
    assert rows(connection, sql) == [(150,)]


def test_a_filter_does_not_change_what_a_model_does_that_was_left_in_eval_mode(agent: Make, connected: Connect) -> None:
    one = agent()
    one.name_modules()
    for step in range(20):
        start = 1000 * step
        if step == 5:  # a validation that forgot to turn gradients off
            one.span(start + 10, start + 60, MODEL, FORWARD | EVAL_MODE)
        one.span(start + 100, start + 300, MODEL, FORWARD | (EVAL_MODE if step > 8 else 0))
        one.span(start + 400, start + 700, 0, ENGINE)
        one.boundary(start + 890)
    named = ", ".join(f"round({name}_duration * 1e9)::BIGINT" for name in ("forward", "validation"))
    connection = connected(one)
    for first in (1, 15):
        sql = f"SELECT step, {named} FROM python.step_trace WHERE step BETWEEN {first} AND 19 ORDER BY step"
        assert rows(connection, sql) == [(step, 200, 50 if step == 5 else 0) for step in range(first, 20)]


def test_a_validation_that_is_under_way_is_one(agent: Make, connected: Connect) -> None:
    one = trained(agent, lambda one, start: one.span(start + 10, start + 110))
    one.span(3010, 3110, MODEL, FORWARD | EVAL_MODE)
    sql = "SELECT phase FROM python.phase_trace WHERE step = 3"
    assert rows(connected(one), sql, open_steps=True) == [("validation",)]


def test_a_call_that_steps_the_optimizer_is_not_a_forward(agent: Make, connected: Connect) -> None:
    one = agent()
    for start in range(0, 3000, 1000):
        one.span(start + 10, start + 300, LINEAR)
        one.span(start + 400, start + 700, 0, ENGINE)
        one.span(start + 800, start + 900, ADAM, OPTIMIZER)
        one.boundary(start + 890)
        one.span(start, start + 950)
    assert split(connected(one)) == (1000, 0, 290, 300, 100, 0, 310)


def test_other_threads_are_in_no_phase(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 10, start + 700, MODEL, FORWARD, thread=99)

    assert split(connected(trained(agent, inside))) == (1000, 0, 0, 0, 100, 0, 900)


def comm(connection: Connection) -> tuple[Any, ...]:
    """(in collectives, hidden behind compute in %) of a step, then its other phases."""
    sql = f"SELECT {COMM}, comm_hidden_pct FROM python.step_trace WHERE step = 1"
    return *rows(connection, sql)[0], *split(connection)[1:]


Operation = tuple[Any, ...]


@pytest.mark.parametrize(
    ("operations", "waits", "expected"),
    [
        ([], [], (0, None, 0, 300, 300, 100, 0, 300)),
        # asynchronous ones block while they are issued, and from when they are waited for
        ([(20, 30, 200)], [], (10, 1000 / 18 * 1.7, 0, 290, 300, 100, 0, 300)),
        ([(20, 30, 200)], [(150, 200)], (60, 100 / 1.5, 0, 240, 300, 100, 0, 300)),
        ([(20, 30, 200), (40, 50, 120)], [(60, 200)], (160, 100 / 9, 0, 140, 300, 100, 0, 300)),
        # who waits at once is blocked for all of it
        ([(720, 730, 790, BLOCKING)], [], (70, 0, 0, 300, 300, 100, 0, 230)),
        ([(820, 830, 850, BLOCKING)], [], (30, 0, 0, 300, 300, 70, 0, 300)),
        # DDP waits for its buffers in a forward, and at the end of a pass for what it has sent
        ([(20, 30, 200, 0, "ddp")], [], (180, 0, 0, 120, 300, 100, 0, 300)),
        ([(450, 460, 500, 0, "ddp"), (600, 610, 680, 0, "ddp")], [], (90, 400 / 13, 0, 300, 210, 100, 0, 300)),
        ([(450, 460, 690, 0, "ddp"), (600, 610, 680, 0, "ddp")], [], (100, 100 * 14 / 24, 0, 300, 200, 100, 0, 300)),
        ([(600, 610, 750, 0, "ddp")], [], (100, 100 / 3, 0, 300, 200, 100, 0, 300)),
        ([(600, 610, 605, 0, "ddp")], [], (10, 0, 0, 300, 290, 100, 0, 300)),
        # of one that is in flight it is not known when it ends; who waits for it is blocked all the same
        ([(20, 30, 200), (740, 750, 780)], [(100, 200), (760, 780)], (140, 100 * 8 / 22, 0, 190, 300, 100, 0, 270)),
    ],
)
def test_time_blocked_by_collectives_is_taken_from_the_phase_around_it(
    agent: Make, connected: Connect, operations: list[Operation], waits: list[Operation], expected: tuple[Any, ...]
) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start, start + 300)
        one.span(start + 400, start + 700, 0, ENGINE)
        for begin, issued, done, *more in operations:
            one.operate(start + begin, start + issued, start + done, *more)
        for begin, end in waits:
            one.span(start + begin, start + end, 0, WAIT)
            one.span(start + begin + 100, start + end + 100, 0, WAIT, thread=99)

    assert comm(connected(trained(agent, inside))) == pytest.approx(expected)


def test_a_collective_in_an_eval_counts_as_eval(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 100, start + 200, 1, EVAL)
        one.operate(start + 110, start + 120, start + 150, BLOCKING)

    assert comm(connected(trained(agent, inside))) == (0, None, 0, 0, 0, 100, 100, 800)


@pytest.mark.parametrize(
    ("tap", "since", "expected"),
    [
        (NO_GROUP, None, 0),
        ("off: KeyError('a')", 0, None),
        ("waiting for a boundary between two steps", None, None),
        ("on", 900, 0),
        ("on", 901, None),
    ],
)
def test_communication_is_null_where_collectives_were_not_recorded(
    agent: Make, connected: Connect, tap: str, since: int | None, expected: int | None
) -> None:
    one = trained(lambda: agent(collectives_ns=since), lambda one, start: None)
    one.facts["taps"]["collectives"] = tap
    assert comm(connected(one)) == (expected, None, 0, 0, 0, 100, 0, 900)


@pytest.mark.parametrize("by", ["user", "ddp"])
def test_collectives_on_a_device_block_no_thread_and_their_hidden_share_is_unknown(
    agent: Make, connected: Connect, by: str
) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 400, start + 700, 0, ENGINE)
        one.operate(start + 10, start + 20, start + 300, by=by)
        one.operate(start + 410, start + 420, start + 600, by=by)

    one = trained(agent, inside)
    one.put(LOG_GROUP, 1, name="0", backend="nccl", size=2, rank=0, ranks=[0, 1])
    assert comm(connected(one))[:2] == (20, None)


def test_the_forward_of_an_unsampled_step_is_null_and_inside_other(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 10, start + 300)
        one.span(start + 400, start + 700, 0, ENGINE)

    connection = connected(trained(agent, inside, flags=0, samples=8, rss_bytes=1 << 20))
    assert split(connection) == (1000, 0, None, 300, 100, 0, 600)
    sql = "SELECT sampled, samples, rss_mb FROM python.step_trace WHERE step = 1"
    assert rows(connection, sql) == [(False, None, 1.0)]


@pytest.mark.parametrize("flags", [BARE, UNTIMED])
def test_a_step_without_taps_has_only_a_duration(agent: Make, connected: Connect, flags: int) -> None:
    one = trained(agent, lambda one, start: None, flags=flags)
    assert split(connected(one)) == (1000, *[None] * 6)


def test_memory_and_samples_are_null_where_they_were_not_read(agent: Make, connected: Connect) -> None:
    one = agent()
    one.name_modules()
    for step in range(4):
        one.boundary(step * 1000, rss_bytes=(step == 2) * 3 << 19, samples=8 * (step == 1))
    sql = "SELECT step, rss_mb, samples, sampled FROM python.step_trace WHERE duration > 0 ORDER BY step"
    assert rows(connected(one), sql) == [(1, None, 8, True), (2, 1.5, None, True), (3, None, None, True)]


def test_the_first_and_the_open_step_have_no_duration(agent: Make, connected: Connect) -> None:
    one = trained(agent, lambda one, start: None)
    one.boundary(10**18)  # not stuck
    connection = connected(one)
    sql = "SELECT step, duration IS NULL, other_duration IS NULL, sampled FROM python.step_trace ORDER BY step"
    whole = [(step, False, False, True) for step in (1, 2)]
    assert rows(connection, sql)[:2] == whole
    shown = rows(connection, sql, open_steps=True)
    assert shown == [(0, True, True, True), *whole, (3, False, False, True), (4, True, True, None)]


def test_a_step_whose_optimizer_is_still_running_is_hidden(agent: Make, connected: Connect) -> None:
    one = trained(agent, lambda one, start: None)
    connection = connected(one)
    one.boundary(3890)
    sql = "SELECT max(step) FROM python.step_trace WHERE duration IS NOT NULL"
    assert rows(connection, sql) == [(2,)]
    one.span(3800, 3900, ADAM, OPTIMIZER)
    assert rows(connection, sql) == [(3,)]


def test_steps_remain_after_their_spans_are_overwritten(agent: Make, connected: Connect) -> None:
    one = agent()
    one.name_modules()
    at = 0
    for _ in range(3000):
        for call in range(20):
            one.span(at + call, at + call + 1, LINEAR)
        one.span(at + 80_000_000, at + 90_000_000, ADAM, OPTIMIZER)
        one.boundary(at + 89_000_000)
        at += 100_000_000
    sql = "SELECT count(duration), count(other_duration) > 100, count(other_duration) < 2999 FROM python.step_trace"
    assert rows(connected(one), sql) == [(2999, True, True)]


def test_a_loop_without_an_optimizer_has_one_step_per_call(agent: Make, connected: Connect) -> None:
    one = agent(anchor=None)
    one.name_modules()
    for start in range(0, 4000, 1000):
        one.load(start + 500, start + 700)
        one.span(start + 800, start + 1000)
    sql = f"SELECT step, round(duration * 1e9)::BIGINT, {ALL} FROM python.step_trace ORDER BY step"
    connection = connected(one)
    found = [row for row in rows(connection, sql) if row[1] is not None]
    assert found == [(0, 200, 0, 200, 0, 0, 0, 0), *((s, 1000, 200, 200, 0, 0, 0, 600) for s in (1, 2, 3))]


def test_a_step_ends_with_its_last_optimizer_in_every_table(agent: Make, connected: Connect) -> None:
    one = agent()
    one.name_modules()
    for start in range(0, 4000, 1000):
        one.span(start, start + 300)
        one.span(start + 700, start + 800, ADAM, OPTIMIZER)
        one.boundary(start + 790)
        one.load(start + 820, start + 840)
        one.span(start + 850, start + 900, ADAM, OPTIMIZER)
    connection = connected(one)
    assert split(connection) == (1000, 20, 300, 0, 150, 0, 530)
    sql = "SELECT start_ns FROM python.step_trace WHERE step = 1 UNION SELECT min(start_ns) FROM python.torch_trace "
    assert rows(connection, f"{sql} WHERE step = 1 ORDER BY 1") == [(900,), (1000,)]
    stages = "SELECT stage, count(*) FROM python.torch_trace WHERE step = 1 GROUP BY stage ORDER BY stage"
    assert rows(connection, stages) == [("forward", 1), ("step", 2)]


def test_an_optimizer_after_a_call_of_a_model_belongs_to_the_next_step(agent: Make, connected: Connect) -> None:
    def train(one: FakeAgent, flags: int) -> None:
        for start in range(0, 4000, 1000):
            for at, half in ((start, 0), (start + 500, 1)):
                if flags & SAMPLED:
                    one.span(at, at + 100)
                one.span(at + 200, at + 300, 0, ENGINE)
                one.span(at + 400, at + 490, ADAM + half, OPTIMIZER)
                if not half:
                    one.boundary(at + 480, flags=flags)

    for flags in (SAMPLED, 0):  # where no calls are recorded, the passes tell
        one = agent()
        train(one, flags)
        connection = connected(one)
        assert rows(connection, "SELECT start_ns FROM python.step_trace WHERE step = 1") == [(490,)]
        duration, _, _, backward, optimizer, _, _ = split(connection)
        assert (duration, backward, optimizer) == (1000, 200, 180)


def test_batches_are_rows_with_facts_about_their_loader(agent: Make, connected: Connect) -> None:
    one = trained(agent, lambda one, start: one.load(start + 10, start + 60, 3, 4))
    one.load(1070, 1090, flags=FAILED)
    sql = (
        "SELECT step, loader, round(wait_duration * 1e9)::BIGINT, ready, outstanding, num_workers, prefetch_factor, "
        "pin_memory, batch_size, thread, failed, in_eval FROM python.dataloader_trace WHERE step = 1 ORDER BY start_ns"
    )
    whole = (1, "loader", 50, 3, 4, 2, 2, False, 8, 4242, False, False)
    assert rows(connected(one), sql) == [whole, (1, "loader", 20, None, None, *whole[5:10], True, False)]


def test_a_loader_tap_that_is_off_is_reported(agent: Make, connected: Connect) -> None:
    one = agent()
    one.facts["taps"]["loader"] = "off: broken"
    one.train(3)
    connection = connected(one)
    notes = connection.query("SELECT * FROM python.dataloader_trace").notes
    assert "rank 0: loader is off: broken" in map(str, notes)


@pytest.mark.parametrize(
    ("tap", "state", "flags", "expected"),
    [
        ("loader", "off: loader: KeyError('a')", SAMPLED, (None, 290, 300, 0, 100, 0, None)),
        ("loader", "off: torch.utils.data had no loaders at the attach", 0, (None, None, 300, None, 100, 0, None)),
        ("loader", NO_LOADERS, SAMPLED, (0, 290, 300, 0, 100, 0, 310)),
        ("forward", "off: backward: KeyError('a')", SAMPLED, (0, None, 300, None, 100, 0, None)),
        ("forward", "off: forward: KeyError('a')", 0, (0, None, 300, None, 100, 0, 600)),
        ("forward", "on: hooks", SAMPLED, (0, 290, 300, 0, 100, 0, 310)),
        ("backward", "off: set backward=off", SAMPLED, (0, 290, 300, 0, 100, 0, 310)),
    ],
)
def test_a_phase_whose_tap_is_off_is_unknown_and_so_is_the_rest_that_holds_it(
    agent: Make, connected: Connect, tap: str, state: str, flags: int, expected: tuple[Any, ...]
) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 10, start + 300)
        one.span(start + 400, start + 700, 0, ENGINE)

    one = trained(agent, inside, flags=flags)
    one.facts["taps"][tap] = state
    connection = connected(one)
    duration, data, forward, backward, *others = split(connection)
    ((validation,),) = rows(connection, "SELECT validation_duration FROM python.step_trace WHERE step = 1")
    assert (duration, data, forward, backward, validation, *others) == (1000, *expected)
    told = connection.query("SELECT * FROM python.step_trace").notes
    assert (f"rank 0: {tap} is {state}" in map(str, told)) == (state != "on" and tap != "backward")


pieces = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.sampled_from([0, 1, 2])), max_size=12)


@given(pieces, st.lists(st.integers(0, 15), max_size=6))
@settings(max_examples=300, deadline=None)
def test_phases_are_never_negative_and_never_exceed_their_step(spans: list, lengths: list[int]) -> None:
    start, length, kind = (np.array([span[i] for span in spans], np.int64) for i in range(3))
    bounds = np.cumsum([5, *lengths]).astype(np.int64)
    outer = Intervals(start, start + length, kind).outermost()
    times = phase_times(bounds[:-1], bounds[1:], outer, (0, 1, 2))
    owner = {}
    for begin, long, what in sorted(spans, key=lambda span: (span[0], -span[0] - span[1])):
        for moment in range(begin, begin + long):
            owner.setdefault(moment, what)
    for step, (begin, end) in enumerate(pairwise(bounds)):
        for what in range(3):
            expected = sum(owner.get(moment) == what for moment in range(begin, end))
            assert times[what, step] == expected >= 0
        assert times[:, step].sum() <= end - begin


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 40), st.sampled_from([FORWARD, OPTIMIZER, ENGINE])), max_size=9
    ),
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
)
@settings(max_examples=300, deadline=None)
def test_steps_end_in_order_each_between_its_boundary_and_the_next(spans: list, gaps: list[int]) -> None:
    table = np.array([(a, a + b, 1, 7, kind, n) for n, (a, b, kind) in enumerate(spans)], np.int64).reshape(-1, 6)
    ends = np.cumsum(gaps).astype(np.int64)
    closed = step_ends(ends, np.full(len(ends), 7), Rows(STREAMS[SPANS], table)).time
    assert (closed >= ends).all() and (closed[:-1] <= ends[1:]).all()


def test_iterators_have_rows_of_their_own_and_are_data(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.load(start + 10, start + 50, flags=ITERATOR)
        one.load(start + 60, start + 90, 0, 2)
        one.load(start + 100, start + 110, 0, 2)
        one.load(start + 120, start + 122, flags=ITERATOR)  # of which nothing is taken

    connection = connected(trained(agent, inside))
    made = (
        "SELECT step, loader, num_workers, round(start_duration * 1e9)::BIGINT, "
        "round(first_batch_duration * 1e9)::BIGINT FROM python.iterator_trace WHERE step = 1 ORDER BY start_ns"
    )
    assert rows(connection, made) == [(1, "loader", 2, 40, 30), (1, "loader", 2, 2, None)]
    assert rows(connection, "SELECT COUNT(*) FROM python.dataloader_trace WHERE step = 1") == [(2,)]
    assert split(connection)[1] == 82
