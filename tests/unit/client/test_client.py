"""The client itself, without an agent."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import pytest
from fake_agent import FakeAgent, resolved

from probe import protocol as wire
from probe.client.agent_link import AgentLink
from probe.client.agent_requests import wait_for_each
from probe.client.agent_socket import AgentSocket
from probe.client.client import Client
from probe.client.endpoints import Address, Resolved
from probe.connection import Connection
from probe.errors import AgentError, SilentError
from probe.host import agent_memory
from probe.host.facts import Facts


@pytest.mark.timeout(10)
def test_a_path_too_long_for_a_socket_is_said_and_the_client_still_closes() -> None:
    client = Client()
    client.connect(Address(f"ipc:///{'x' * 200}", os.getpid()))
    (call,) = client.ask(wire.SNAPSHOT, time.monotonic() + 5)
    assert isinstance(call.error, SilentError)
    assert f"Rank 0 (pid {os.getpid()}) cannot be reached at /{'x' * 200}: AF_UNIX path too long" in str(call.error)
    client.close()


def test_an_answer_that_has_come_counts_though_its_deadline_passed_meanwhile(agent: Callable[..., FakeAgent]) -> None:
    """The command may have stood still in between, the rank did not."""
    one, client = agent(), Client()
    client.connect(resolved(one).addresses[0])
    (hello,) = client.ask(wire.HELLO, time.monotonic() + 5, protocol=wire.PROTOCOL)
    assert hello.error is None
    answered = threading.Event()
    answer = one.server.handlers[wire.SNAPSHOT]
    one.server.handlers[wire.SNAPSHOT] = lambda *request: (answer(*request), answered.set())
    call = client.send(client.links[0], wire.SNAPSHOT)
    assert answered.wait(5)
    one.close()  # all that it had to say is in the socket
    assert client.wait([call], time.monotonic() - 1) == [] and call.error is None
    client.close()


def test_an_agent_that_is_there_without_its_socket_was_not_detached(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the agent calls its socket may be a path of its container: the address says where it is from here."""
    facts = Facts.parse({"rank": 0, "pid": os.getpid(), "id": "it", "endpoint": "ipc:///of/its/container"})
    monkeypatch.setattr(agent_memory, "facts", lambda pid: facts)
    link = AgentLink(Address(f"ipc://{short_folder}/socket", os.getpid(), facts), None)
    assert "has lost its socket" in link.left().why and not link.left().for_good
    (short_folder / "socket").touch()
    assert "was detached" in link.left().why


def test_an_agent_that_has_made_its_socket_anew_since_it_was_asked_was_not_detached(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = short_folder / "socket"
    facts = Facts.parse({"rank": 0, "pid": os.getpid(), "id": "it", "endpoint": f"ipc://{path}"})
    monkeypatch.setattr(agent_memory, "facts", lambda pid: facts)
    link = AgentLink(Address(f"ipc://{path}", os.getpid(), facts), AgentSocket(str(path)))
    path.touch()
    loss = link.loss()
    assert loss is not None and "has lost its socket" in loss.why and not loss.for_good
    monkeypatch.setattr(agent_memory, "facts", lambda pid: None)
    loss = link.loss()
    assert loss is not None and "was detached" in loss.why and loss.for_good


@pytest.mark.parametrize(
    "greeting", [b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48), b"HTTP/1.1 400 Bad Request\r\n\r\n"]
)
def test_an_agent_of_another_protocol_is_told_with_the_remedy(tmp_path: Path, greeting: bytes) -> None:
    """The first is what an agent that spoke ZeroMQ says."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(4)

        def answer() -> None:
            client, _ = listener.accept()
            client.sendall(greeting)
            client.recv(1 << 16)

        threading.Thread(target=answer, daemon=True).start()
        facts = Facts.parse({"rank": 0, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns()})
        with pytest.raises(AgentError, match="malformed") as caught:
            Connection(Resolved("it", [Address(f"ipc://{path}", os.getpid(), facts)]), 3.0)
    assert caught.value.code == "protocol" and caught.value.hint.endswith(f"probe attach {os.getpid()}")


@pytest.mark.parametrize(
    ("address", "begins"),
    [
        (Address("tcp://10.0.0.1:99", 0, Facts(host="node7", pid=42)), "On node7: Raise"),
        (Address("tcp://10.0.0.1:99"), "On its host: Raise"),
        (Address("ipc:///tmp/socket", 42, Facts(host="node7", pid=42)), "Raise"),
    ],
)
def test_a_remedy_with_a_pid_names_the_host_of_the_process(address: Address, begins: str) -> None:
    loss = AgentLink(address, None).refusal("no-room", "has no room")
    assert loss is not None and loss.error.hint.startswith(f"{begins} the job's limit: prlimit --nofile=4096 --pid ")


def test_a_wait_for_others_rests_while_a_socket_is_closed(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, receive = list[str](), AgentSocket.receive
    monkeypatch.setattr(AgentSocket, "receive", lambda self: looks.append("") or receive(self))
    client, accepted = Client(), list[socket.socket]()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short_folder}/socket")
        listener.listen(4)
        links = [client.connect(Address(f"ipc://{short_folder}/socket")) for _ in range(2)]
        accepted += [listener.accept()[0] for _ in links]
        accepted[0].close()
        calls = client.ask(wire.SNAPSHOT, time.monotonic() + 0.3)
    assert ["has ended." in str(call.error) for call in calls] == [True, False] and len(looks) <= 2
    client.drop(links[0])
    client.close()
    accepted[1].close()


def ended_at(event: int, url: str) -> bool:
    """Whether Ctrl-C came in the midst of a connection to a server; such a client must still close."""
    count = 0

    def trace(frame: FrameType, kind: str, value: object) -> Any:
        nonlocal count
        count += 1
        if count == event:
            raise KeyboardInterrupt
        return trace

    client, before = Client(), sys.gettrace()
    sys.settrace(trace)
    try:
        client.server(url)
    except KeyboardInterrupt:
        sys.settrace(before)
        client.close()  # here, where the frames of the error are still alive
        return True
    finally:
        sys.settrace(before)
    client.close()
    return False


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:Unclosed socket", "ignore:unclosed context")
def test_a_client_closes_wherever_ctrl_c_comes_in_the_midst_of_connecting(short_folder: Path) -> None:
    url = f"ipc://{short_folder}/server"
    assert not ended_at(0, url)  # with all imports done
    event = 1
    while ended_at(event, url):
        event += 1
    assert event > 50


class PlayedClock:
    """The clock of a client, which only its waits move.  due: what has an answer come, and when, the earliest first."""

    time_ns = staticmethod(time.time_ns)

    def __init__(self, client: Client, due: list[tuple[float, Callable[[], None]]]) -> None:
        self._epoll, self._due, self._now = client._epoll, due, 0.0

    def monotonic(self) -> float:
        return self._now

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        self._now += seconds
        if not self._due or self._due[0][0] > self._now:
            return []
        self._due.pop(0)[1]()
        return self._epoll.poll(30)


def test_large_answers_have_time_as_long_as_one_comes_after_the_other(
    agent: Any, connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, asked = [agent(rank, world_size=4) for rank in range(4)], [SimpleQueue[Any]() for _ in range(4)]
    for one, keys in zip(ranks, asked, strict=True):
        one.server.handlers[wire.FLIGHT] = lambda key, *request, keys=keys: keys.put(key)

    def answer(rank: int) -> None:
        ranks[rank].server.post(asked[rank].get(timeout=30), wire.ENTRIES, texts=[], groups={})

    client = connected(*ranks)._client
    calls = [client.send(link, wire.FLIGHT) for link in client.links]
    clock = PlayedClock(client, [(0.4 * (rank + 1), partial(answer, rank)) for rank in range(3)])
    with monkeypatch.context() as played:
        played.setattr(client, "_epoll", clock)
        for module in ("client", "agent_requests"):
            played.setattr(f"probe.client.{module}.time", clock)
        wait_for_each(client, calls, 0.7)
    assert [call.answer is not None for call in calls] == [True, True, True, False]
    assert isinstance(calls[3].error, SilentError)
