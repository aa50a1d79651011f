"""Open files for the sockets to many agents."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator

import pytest
from fake_agent import FakeAgent

from probe.connection import Connection
from probe.errors import EndpointError
from probe.host import file_limits

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
FILES = resource.RLIMIT_NOFILE


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(FILES)
    yield before
    resource.setrlimit(FILES, before)


def used() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_the_soft_limit_is_raised_to_the_hard_one_if_needed(limits: tuple[int, int]) -> None:
    resource.setrlimit(FILES, (used() + 100, limits[1]))
    file_limits.make_room(4)
    assert resource.getrlimit(FILES) == (used() + 100, limits[1])
    file_limits.make_room(200)
    assert resource.getrlimit(FILES) == (limits[1], limits[1])


def test_a_hard_limit_that_is_too_low_is_an_error_with_the_number_needed(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, 256))
    with pytest.raises(EndpointError, match=r"512 ranks need [5-9]\d\d open files, and no more than 256") as caught:
        file_limits.make_room(512)
    assert caught.value.code == "open-files"


def test_an_agent_costs_one_descriptor_here(agent: Make, connected: Connect) -> None:
    ranks = [agent(rank) for rank in range(6)]
    before = used()
    connected(*ranks[:1])
    one = used() - before
    connected(*ranks[1:])
    # the agents share this process: the other end of each connection is here, too
    assert used() - before - 2 * one == (5 - 1) * (file_limits.PER_AGENT + 1)
