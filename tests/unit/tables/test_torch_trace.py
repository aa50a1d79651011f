"""What a module row says: whose time it is, and in which mode its model was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import ADAM, LINEAR, MODEL, THREAD, FakeAgent

from probe.agent.storage.rows import Stream
from probe.connection import Connection
from probe.streams import (
    BEGIN,
    BLOCKING,
    DEVICE,
    END,
    ENGINE,
    EVAL_MODE,
    FAILED,
    FORWARD,
    LOG_MODULE,
    MARK,
    NO_GRAD,
    OPTIMIZER,
    STREAMS,
    WAIT,
)

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
CHILD = 1009
NS = "round(duration * 1e9)::BIGINT, round(total_duration * 1e9)::BIGINT"


def trained(agent: Make, inside: Callable[[FakeAgent, int], None]) -> FakeAgent:
    """Three steps of 1,000 ns, with what `inside` puts into each."""
    one = agent()
    one.name_modules()
    for start in range(0, 3000, 1000):
        inside(one, start)
        one.span(start + 800, start + 900, ADAM, OPTIMIZER)
        one.boundary(start + 890)
    return one


def rows(connection: Connection, columns: str) -> list[tuple[Any, ...]]:
    sql = f"SELECT module, stage, {columns} FROM python.torch_trace WHERE step = 1 ORDER BY start_ns, duration"
    return [tuple(row.values()) for row in connection.query(sql).to_pylist()]


def test_what_checkpointing_goes_back_through_on_a_thread_of_autograds_is_told_once(
    agent: Make, connected: Connect
) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 100, start + 200, LINEAR)
        one.span(start + 50, start + 300)
        one.mark(start + 410, MODEL, BEGIN, 99)
        one.span(start + 420, start + 480, LINEAR, thread=99)  # a reentrant checkpoint runs it again
        one.mark(start + 510, LINEAR, BEGIN, 99)
        one.span(start + 500, start + 600, 0, ENGINE, 99)  # and goes back through that
        one.span(start + 400, start + 700, 0, ENGINE)

    told = rows(connected(trained(agent, inside)), f"recompute, {NS}")
    assert [row[:3] for row in told if row[2]] == [("linear", "forward", True)]
    assert sum(row[3] for row in told if row[1] == "backward" or row[2]) == 300


def test_a_call_that_checkpointing_runs_again_and_breaks_off_has_not_failed_but_its_pass_may(
    agent: Make, connected: Connect
) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 100, start + 200, LINEAR, FORWARD | FAILED)  # a call that the job tries, say
        one.span(start + 50, start + 300)
        one.mark(start + 310, MODEL, BEGIN)
        one.span(start + 320, start + 380, LINEAR, FORWARD | FAILED)  # torch has what the pass needs
        one.span(start + 305, start + 400, 0, ENGINE)
        one.mark(start + 510, MODEL, BEGIN)
        one.span(start + 520, start + 580, LINEAR, FORWARD | FAILED)  # out of memory
        one.span(start + 500, start + 600, 0, ENGINE | FAILED)

    told = rows(connected(trained(agent, inside)), "recompute, failed")
    assert [row for row in told if row[1] != "step"] == [
        ("Model", "forward", False, False),
        ("linear", "forward", False, True),
        ("Model", "backward", False, False),
        ("linear", "forward", True, False),
        ("Model", "backward", False, True),
        ("linear", "forward", True, False),
    ]


@pytest.mark.parametrize("thread", [THREAD, 99])
def test_a_step_that_a_hook_makes_in_a_pass_is_no_modules_time(agent: Make, connected: Connect, thread: int) -> None:
    one = agent()
    one.name_modules()
    for start in range(0, 3000, 1000):
        one.span(start + 50, start + 300)
        one.mark(start + 410, MODEL, BEGIN, thread)
        one.span(start + 440, start + 460, ADAM, OPTIMIZER, thread=thread)
        one.span(start + 400, start + 500, 0, ENGINE)
        one.boundary(start + 500)
    told = rows(connected(one), f"micro_step, {NS}")
    assert told == [
        ("Model", "forward", 0, 250, 250),
        ("Model", "backward", 0, 80, 100),
        ("AdamW", "step", 0, 20, 20),
    ]


def test_waiting_for_collectives_is_no_modules_time_and_has_rows(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 100, start + 200, LINEAR)  # in which an operation is issued, and waited for
        one.operate(start + 110, start + 120, start + 180)
        one.span(start + 150, start + 180, 0, WAIT)
        one.operate(start + 220, start + 230, start + 250, BLOCKING)
        one.span(start + 50, start + 300)
        one.mark(start + 410, MODEL, BEGIN)
        one.mark(start + 450, LINEAR, BEGIN)
        one.mark(start + 550, LINEAR, END)
        one.operate(start + 500, start + 510, start + 580, by="ddp")  # the reducer waits for it, beyond the linear
        one.span(start + 400, start + 600, 0, ENGINE)
        one.operate(start + 650, start + 700, start + 700, BLOCKING)  # outside of everything

    connection = connected(trained(agent, inside))
    assert rows(connection, NS) == [
        ("Model", "forward", 250 - 100 - 30, 250),
        ("linear", "forward", 100 - 10 - 30, 100),
        ("0", "comm", 10, 10),
        ("0", "comm", 30, 30),
        ("0", "comm", 30, 30),
        ("Model", "backward", 100 - 30, 200),
        ("linear", "backward", 100 - 50, 100),
        ("0", "comm", 80, 80),
        ("0", "comm", 50, 50),
        ("AdamW", "step", 100, 100),
    ]
    waits = [row for row in rows(connection, "parent, depth, root, seq, training") if row[1] == "comm"]
    assert waits == [
        ("0", "comm", "linear", 2, None, None, True),
        ("0", "comm", "linear", 2, None, None, True),
        ("0", "comm", "Model", 1, None, None, True),
        ("0", "comm", None, 0, None, None, None),
        ("0", "comm", None, 0, None, None, None),
    ]


def test_what_a_thread_of_autograds_sends_in_a_pass_is_no_modules_time_either(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 100, start + 200, LINEAR)
        one.span(start + 50, start + 300)
        one.mark(start + 410, MODEL, BEGIN, 99)
        one.mark(start + 450, LINEAR, BEGIN, 99)
        one.mark(start + 550, LINEAR, END, 99)
        one.operate(start + 460, start + 470, start + 480, BLOCKING, thread=99)
        one.operate(start + 500, start + 510, start + 560, by="ddp", thread=99)
        one.operate(start + 570, start + 575, start + 580, by="ddp", thread=99)  # the reducer waits for it alone
        one.span(start + 400, start + 600, 0, ENGINE)

    told = [row for row in rows(connected(trained(agent, inside)), NS) if row[1] in ("backward", "comm")]
    assert told == [
        ("Model", "backward", 100 - 10, 200),
        ("linear", "backward", 100 - 20 - 10, 100),
        ("0", "comm", 20, 20),
        ("0", "comm", 10, 10),
        ("0", "comm", 10, 10),
    ]
    assert sum(own for _, _, own, _ in told) == 200


def test_a_wait_with_operations_of_several_groups_under_way_names_none(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.operate(start + 10, start + 20, start + 150)
        one.operate(start + 30, start + 40, start + 150, group=2)
        one.span(start + 100, start + 150, 0, WAIT)

    assert rows(connected(trained(agent, inside)), NS)[:3] == [
        ("0", "comm", 10, 10),
        (None, "comm", 10, 10),  # the agent knew no name of it
        (None, "comm", 50, 50),
    ]


def test_rows_say_in_which_mode_their_model_was(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 20, start + 30, LINEAR, FORWARD | EVAL_MODE)  # frozen, inside a model that trains
        one.span(start + 10, start + 50)
        one.span(start + 60, start + 100, 0, ENGINE)
        one.span(start + 120, start + 130, LINEAR, FORWARD | NO_GRAD)
        one.span(start + 110, start + 150, MODEL, FORWARD | EVAL_MODE | NO_GRAD)

    assert rows(connected(trained(agent, inside)), "training, grad") == [
        ("Model", "forward", True, True),
        ("linear", "forward", True, True),
        ("Model", "backward", True, True),
        ("Model", "forward", False, False),
        ("linear", "forward", False, False),
        ("AdamW", "step", None, None),
    ]


def on_device(agent: Make, inside: Callable[[FakeAgent, int], None]) -> FakeAgent:
    """As trained(), in µs, with rows about a device."""
    one = agent()
    one.name_modules()
    one.streams[DEVICE] = stream = Stream(DEVICE, STREAMS[DEVICE], 1 << 20)
    one.facts["streams"][DEVICE] = {"slots": list(stream.slots), "chunks": stream.chunks}
    for start in range(0, 3_000_000, 1_000_000):
        inside(one, start)
        one.span(start + 800_000, start + 900_000, ADAM, OPTIMIZER)
        one.boundary(start + 890_000)
    return one


def ran(one: FakeAgent, host: int, start: float, end: float, kind: int = FORWARD) -> None:
    """On the device, what began on the host then; times are µs after the host's."""
    begin = host // 1_000_000 * 1_000_000
    times = round(begin + 1000 * start), round(begin + 1000 * end), host
    one.streams[DEVICE].append(*times, THREAD, 0, -1, -1, -1, -1, kind)


@pytest.mark.parametrize(
    ("parent", "children", "expected"),
    [
        ((0, 100), [(10, 40), (40, 90)], 20),
        ((0, 100), [(10, 40.5), (40, 90)], 19.5),  # within the clock's error
        ((0, 100), [(90, 160)], None),
        ((20, 100), [(10, 40)], None),
        ((0, 100), [(10, 60), (40, 90)], None),
    ],
)
def test_a_module_with_children_on_other_streams_has_no_time_of_its_own(
    agent: Make,
    connected: Connect,
    parent: tuple[int, int],
    children: list[tuple[float, float]],
    expected: float | None,
) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        for place, child in enumerate(children):
            at = start + 10_000 + 20_000 * place
            one.span(at, at + 10_000, LINEAR)
            ran(one, at, *child)
        one.span(start, start + 100_000)
        ran(one, start, *parent)

    sql = "SELECT round(duration * 1e6, 1), round(total_duration * 1e6) FROM python.torch_trace WHERE step = 1"
    found = connected(on_device(agent, inside)).query(f"{sql} AND module = 'Model'").to_pylist()
    assert [tuple(row.values()) for row in found] == [(expected, parent[1] - parent[0])]


def test_the_caller_of_a_module_with_such_children_has_none_either(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 20_000, start + 30_000, CHILD)
        ran(one, start + 20_000, 90, 160)
        one.span(start + 10_000, start + 40_000, LINEAR)
        ran(one, start + 10_000, 0, 100)
        one.span(start, start + 100_000)
        ran(one, start, 0, 200)

    one = on_device(agent, inside)
    one.put(LOG_MODULE, CHILD, name="linear.inner", type="Linear", parent=LINEAR, root=MODEL)
    sql = "SELECT module, round(duration * 1e6) FROM python.torch_trace WHERE step = 1 AND stage = 'forward' ORDER BY 1"
    found = [tuple(row.values()) for row in connected(one).query(sql).to_pylist()]
    assert found == [("Model", None), ("linear", None), ("linear.inner", 70)]


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(450, 550, (200, 100)), *((*each, (None, None)) for each in ((450, 440), (390, 550), (450, 720)))],
)
def test_a_pass_whose_marks_do_not_rise_as_on_several_streams_has_no_times(
    agent: Make, connected: Connect, begin: int, end: int, expected: tuple[float | None, float | None]
) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        one.span(start + 100_000, start + 200_000, LINEAR)
        ran(one, start + 100_000, 100, 200)
        one.span(start + 50_000, start + 300_000)
        ran(one, start + 50_000, 50, 300)
        for host, on_it, module, kind in (
            (410, 410, MODEL, BEGIN), (450, begin, LINEAR, BEGIN), (550, end, LINEAR, END)
        ):  # fmt: skip
            one.mark(start + 1000 * host, module, kind)
            ran(one, start + 1000 * host, on_it, on_it, MARK)
        one.span(start + 400_000, start + 700_000, 0, ENGINE)
        ran(one, start + 400_000, 400, 700, ENGINE)

    sql = "SELECT round(duration * 1e6) AS own FROM python.torch_trace WHERE step = 1 AND stage = 'backward'"
    found = connected(on_device(agent, inside)).query(f"{sql} ORDER BY module").to_pylist()
    assert tuple(row["own"] for row in found) == expected


def test_calls_of_a_validation_are_none_of_the_pass_after_it(agent: Make, connected: Connect) -> None:
    def inside(one: FakeAgent, start: int) -> None:
        for at in (10, 30, 50):
            one.span(start + at, start + at + 10, MODEL, FORWARD | NO_GRAD)
        one.span(start + 100, start + 200)  # it returns two tensors, so its backward begins twice
        one.mark(start + 410, MODEL, BEGIN)
        one.mark(start + 420, MODEL, BEGIN)
        one.span(start + 400, start + 600, 0, ENGINE)

    found = rows(connected(trained(agent, inside)), NS)
    assert [row for row in found if row[1] == "backward"] == [("Model", "backward", 200, 200)]


@pytest.mark.parametrize(("device", "is_known"), [("cpu", True), ("xpu:0", False), ("mps:0", False), ("npu:1", False)])
def test_the_hosts_clock_is_not_called_the_time_of_a_device(
    agent: Make, connected: Connect, device: str, is_known: bool
) -> None:
    one = agent()
    one.put(LOG_MODULE, MODEL, name="Model", type="Model", parent=0, root=MODEL, device=device)
    one.put(LOG_MODULE, LINEAR, name="linear", type="Linear", parent=MODEL, root=MODEL, device=None, spread=True)
    for start in range(0, 3000, 1000):
        one.span(start + 120, start + 180, LINEAR)
        one.span(start + 100, start + 200)
        one.boundary(start + 890)
    known = [each for each in (40, 60) if is_known] or [None, None]
    assert rows(connected(one), NS) == [
        ("Model", "forward", known[0], 100 if is_known else None),
        ("linear", "forward", known[1], 60 if is_known else None),
    ]
    host = "round(host_duration * 1e9)::BIGINT, device"
    assert rows(connected(one), host) == [("Model", "forward", 40, device), ("linear", "forward", 60, None)]
