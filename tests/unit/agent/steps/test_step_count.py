"""Counting steps: which boundaries are reported to whom, and facts about the last steps."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from probe.agent.steps.sampling import Sampling
from probe.agent.steps.step_count import Steps
from probe.agent.storage.rows import Stream
from probe.streams import STEPS, STREAMS

ANCHOR = 1
Made = Callable[..., Steps]


@pytest.fixture
def made() -> Made:
    def make(boundary: Callable[[int], int], stream: Stream | None = None, sampling: Sampling | None = None) -> Steps:
        steps = Steps(stream or small_stream(), boundary, sampling or never_sampling())
        steps.anchor = ANCHOR
        return steps

    return make


def small_stream() -> Stream:
    return Stream(STEPS, STREAMS[STEPS], 1)


def never_sampling() -> Sampling:
    sampling = Sampling()
    sampling.begin_step = lambda *_: (0, 1 << 40)  # type: ignore[method-assign, assignment]
    return sampling


def run(steps: Steps, count: int, every_ns: int = 10) -> None:
    for _ in range(count):
        steps.stepped(None, ANCHOR, every_ns * (steps.count + 1))


def test_the_boundary_is_called_at_the_counts_it_names(made: Made) -> None:
    told: list[int] = []

    def boundary(count: int) -> int:
        told.append(count)
        return 3 * count

    run(made(boundary), 30)
    assert told == [1, 3, 9, 27]


@pytest.mark.parametrize("wake", [Steps.wake, Steps.resample])
def test_a_wake_during_planning_is_not_lost(made: Made, wake: Callable[[Steps], None]) -> None:
    told: list[int] = []

    def boundary(count: int) -> int:
        told.append(count)
        if len(told) == 1:
            wake(steps)  # by another thread, before the plan made without it is stored
        return 1 << 40

    steps = made(boundary)
    run(steps, 5)
    assert told == [1, 2]
    wake(steps)
    run(steps, 5)
    assert told == [1, 2, 6]


def test_steps_go_on_calling_the_boundary_after_an_error_in_sampling(made: Made) -> None:
    sampling, told = never_sampling(), list[int]()
    steps = made(lambda count: told.append(count) or 1 << 40, sampling=sampling)  # type: ignore[func-returns-value]
    begin_step = sampling.begin_step

    def broken(*_: object) -> tuple[int, int]:
        sampling.begin_step = begin_step  # type: ignore[method-assign]
        raise ValueError

    sampling.begin_step = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(ValueError):
        run(steps, 1)
    run(steps, 5)
    assert told == [2] and steps.count == 6


def test_facts_about_the_last_steps_are_read_from_their_rows(made: Made) -> None:
    stream = small_stream()
    steps = made(lambda _: 1 << 40, stream)
    assert (steps.last_ns, steps.training_thread, steps.typical_ns()) == (None, None, None)
    run(steps, 1)
    assert (steps.last_ns, steps.training_thread, steps.typical_ns()) == (10, threading.get_ident(), None)
    run(steps, 20_000)  # more than a lap of the ring
    assert steps.last_ns == 200_010 and steps.typical_ns() == 10
    stream.claim()  # one is being written
    assert steps.last_ns == 200_010 and steps.typical_ns() == 10
    run(steps, 40, every_ns=30)
    assert steps.typical_ns() == 30
