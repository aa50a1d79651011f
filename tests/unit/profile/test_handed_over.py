"""The memory of a process by the descriptor that its agent hands over: to whom, and for what it is good."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import descriptors
from fake_agent import FakeAgent
from until import until

from probe import protocol as wire
from probe.agent.serve import own_memory
from probe.errors import AgentError, SilentError
from probe.profile.handed_over import handed_over
from probe.profile.moment import threads_now


@pytest.fixture
def agent(short_folder: Path) -> Iterator[FakeAgent]:
    made = FakeAgent(short_folder)
    yield made
    made.close()


def memory_files() -> list[str]:
    return [link for link in descriptors().values() if link.endswith("/mem")]


def has_only(before: list[str]) -> bool:
    """Of descriptors; a connection of the agent is off its list before it is closed."""
    return {*os.listdir("/proc/self/fd")} <= {*before}


def test_stacks_are_read_through_it_and_nothing_can_be_written(agent: FakeAgent) -> None:
    before = os.listdir("/proc/self/fd")
    handed = handed_over(agent.path, wire.CONTROL, "rank 0")
    (main,) = handed.threads
    assert main["name"] == "MainThread" and main["is_main"]
    found = threads_now(handed.memory, handed.layout)
    assert found is not None
    (thread,) = (each for each in found if each.ident == main["ident"])
    assert test_stacks_are_read_through_it_and_nothing_can_be_written.__name__ in {f.function for f in thread.frames}
    file = handed.memory._file
    assert fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY and not os.get_inheritable(file)
    del handed
    agent.server.on_thread(lambda: None, 5)
    assert memory_files() == []
    until(lambda: has_only(before))


def test_who_may_only_read_does_not_get_it(agent: FakeAgent) -> None:
    with pytest.raises(AgentError, match="may read, not control") as caught:
        handed_over(agent.path, wire.READ, "rank 0")
    assert caught.value.code == "read-only"


def test_another_user_does_not_get_it(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """One who has attached by a capability, say."""
    monkeypatch.setattr(own_memory, "peer_uid", lambda socket: os.geteuid() + 1)
    with pytest.raises(AgentError, match="its own user and to root, not to uid"):
        handed_over(agent.path, wire.CONTROL, "rank 0")


def test_an_agent_that_does_not_answer_is_named_with_the_remedy(agent: FakeAgent) -> None:
    agent.deaf.add(wire.MEMORY)
    with pytest.raises(SilentError, match=r"memory of rank 0 may not be read, and its agent does not.*doctor"):
        handed_over(agent.path, wire.CONTROL, "rank 0", 0.1)


@pytest.mark.parametrize("answer", [b"{}", b'{"kind": "at"}', wire.encode(wire.HANDED, layout={}, threads=[])])
def test_what_is_no_answer_is_an_error(agent: FakeAgent, answer: bytes) -> None:
    handler: Callable[..., Any] = lambda key, request, payload: agent.send(key, [answer])  # noqa: E731
    agent.server.handlers[wire.MEMORY] = handler
    with pytest.raises(AgentError, match="malformed message") as caught:
        handed_over(agent.path, wire.CONTROL, "rank 0")
    assert caught.value.code == "protocol"


def test_an_agent_that_hands_over_several_descriptors_leaves_none_of_them(agent: FakeAgent) -> None:
    """There is room for two, as messages of the kernel are aligned."""
    before = os.listdir("/proc/self/fd")

    def two(key: Any, request: dict[str, Any], payload: Any) -> None:
        files = [os.open("/proc/self/mem", os.O_RDONLY) for _ in range(2)]
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", *files))]
        key[0].socket.sendmsg([b"".join(wire.packed([key[1], b"{}"]))], passed)
        for file in files:
            os.close(file)

    agent.server.handlers[wire.MEMORY] = two
    with pytest.raises(AgentError, match="malformed message"):
        handed_over(agent.path, wire.CONTROL, "rank 0")
    until(lambda: not agent.server.connections._clients)
    assert memory_files() == []
    until(lambda: has_only(before))
