"""Times of hosts whose clocks are not this one's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import FakeAgent
from hypothesis import given
from hypothesis import strategies as st

from probe import protocol as wire
from probe.client.clock_offsets import ClockOffsets
from probe.connection import Connection
from probe.host.processes import boot_id

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]

SECOND = 10**9
THERE = {"host": "there", "boot_id": "another"}


def test_when_an_answer_came_is_by_this_machines_clock(agent: Make, connected: Connect) -> None:
    client, begun = connected(agent(**THERE, wall_ns=5))._client, time.monotonic()
    (call,) = client.ask(wire.SNAPSHOT, time.monotonic() + 5)
    assert begun <= call.answered_at <= time.monotonic()


@given(st.integers(-(10**18), 10**18), st.integers(0, SECOND), st.integers(0, SECOND))
def test_the_true_offset_lies_within_the_error(offset: int, out: int, back: int) -> None:
    facts = ClockOffsets().corrected(
        {**THERE, "wall_ns": 5 * SECOND + out + offset}, 5 * SECOND, 5 * SECOND + out + back
    )
    assert abs((facts.clock_offset_ns or 0) - offset) <= (facts.clock_error_ns or 0) + 1
    assert abs((facts.clock_error_ns or 0) - (out + back) / 2) <= 1


def test_this_machines_clock_is_its_own() -> None:
    for mine in ({"boot_id": boot_id(), "host": "a name of its own"}, {"host": os.uname().nodename}):
        facts = ClockOffsets().corrected({**mine, "wall_ns": 5}, 0, 1)
        assert (facts.clock_offset_ns, facts.clock_error_ns, facts.wall_ns) == (0, 0, 5)


def test_an_offset_within_its_error_corrects_nothing() -> None:
    facts = ClockOffsets().corrected({**THERE, "wall_ns": 1 * SECOND}, 0, 1 * SECOND)
    assert facts.wall_ns == 1 * SECOND and facts.clock_offset_ns == facts.clock_error_ns == SECOND // 2


def test_the_quickest_round_trip_counts_for_all_ranks_of_a_host_until_its_clock_is_set() -> None:
    clocks = ClockOffsets()
    assert clocks.corrected({**THERE, "wall_ns": 7 * SECOND}, 0, 100).clock_offset_ns == 7 * SECOND - 50
    assert clocks.corrected({**THERE, "wall_ns": 7 * SECOND + 3000}, 0, 9000).clock_offset_ns == 7 * SECOND - 50
    assert clocks.corrected({**THERE, "wall_ns": 2 * SECOND}, 0, 9000).clock_offset_ns == 2 * SECOND - 4500


def test_times_of_hosts_that_go_hours_wrong_are_comparable(agent: Make, connected: Connect) -> None:
    ranks = [agent(0, world_size=2), agent(1, world_size=2, host="there", boot_id="another")]
    late = 7200 * SECOND
    now = ranks[1].now
    ranks[1].now = lambda: (facts := now()) | {"wall_ns": facts["wall_ns"] - late}  # type: ignore[method-assign]
    at = time.monotonic_ns()
    for one in ranks:
        one.train(3, at, group_seq=0)
    connection = connected(*ranks)
    (row,) = connection.query(
        "SELECT max(epoch_us(time)) - min(epoch_us(time)) AS apart FROM python.torch_trace "
        "WHERE step = 1 AND depth = 0 AND stage = 'forward'"
    ).to_pylist()
    assert row["apart"] < 5_000_000
    told: list[dict[str, Any]] = connection.query(
        "SELECT clock_offset_us, clock_error_us FROM probe.agents ORDER BY rank"
    ).to_pylist()
    assert told[0] == {"clock_offset_us": 0.0, "clock_error_us": 0.0}
    assert told[1]["clock_offset_us"] == pytest.approx(-7200e6, abs=told[1]["clock_error_us"] + 1000)
