"""Arguments that a program passes: each has the meaning it seems to have, or is refused in words."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import FakeAgent

import probe
from probe import protocol as wire
from probe.connection import Connection
from probe.errors import EndpointError, UsageError


def test_a_pid_may_be_a_number() -> None:
    with pytest.raises(EndpointError, match=str(os.getpid())) as caught:
        probe.connect(os.getpid())
    assert caught.value.code == "not-attached"


@pytest.mark.parametrize("endpoint", ["", " "])
def test_an_empty_endpoint_is_not_the_only_job(endpoint: str) -> None:
    """A program's variable, perhaps, that was to name another job."""
    with pytest.raises(UsageError, match="The endpoint is empty"):
        probe.connect(endpoint)


CALLS: list[Callable[[Connection], Any]] = [
    lambda job: job.eval("1", ranks=[]),
    lambda job: job.trace("app:predict", 0.1, ranks=[]),
    lambda job: job.profile(0.1, ranks=[]),
]


@pytest.mark.parametrize("call", CALLS, ids=["eval", "trace", "profile"])
def test_no_ranks_are_no_request(
    call: Callable[[Connection], Any], agent: Callable[..., FakeAgent], connected: Callable[..., Connection]
) -> None:
    with pytest.raises(UsageError, match=r"No rank is given\. Ranks: 0"):
        call(connected(agent()))


@pytest.mark.parametrize("timeout", [math.inf, math.nan, 0, -1])
def test_a_timeout_is_a_number_of_seconds(
    timeout: float, agent: Callable[..., FakeAgent], connected: Callable[..., Connection]
) -> None:
    one = agent()
    with pytest.raises(UsageError, match=rf"timeout={timeout} is no time to wait"):
        connected(one).eval("1", timeout=timeout)
    assert not any(each["kind"] == wire.ARM for each in one.requests)


TAKE_TIME: list[Callable[[Connection, float], Any]] = [
    lambda job, seconds: job.trace("app:predict", seconds),
    lambda job, seconds: job.profile(seconds),
    lambda job, seconds: job.history(seconds),
    lambda job, seconds: job.why(seconds),
]


@pytest.mark.parametrize("call", TAKE_TIME, ids=["trace", "profile", "history", "why"])
@pytest.mark.parametrize("seconds", [math.inf, math.nan, 0, -1])
def test_what_takes_time_takes_a_number_of_seconds(
    seconds: float, call: Callable[[Connection, float], Any], agent: Callable[..., FakeAgent],
    connected: Callable[..., Connection],
) -> None:  # fmt: skip
    with pytest.raises(UsageError, match=rf"seconds={seconds} is no time to wait"):
        call(connected(agent()), seconds)
