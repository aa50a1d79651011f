"""The server's relay, between ZeroMQ clients of our own and agents without a job."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from fake_agent import FakeAgent
from serving import Serving
from until import until

from probe import protocol as wire
from probe.client import client as reader
from probe.client import handshake, server_socket, zmq_frames
from probe.serve import relay, server

STAY = {"kind": wire.STAY, "of": "1"}


class Client:
    """A DEALER; ask() waits for the terminal reply."""

    def __init__(self, context: zmq.Context[Any], serving: Serving, **options: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        for name, value in {"linger": 0, "rcvtimeo": 5000, **options}.items():
            setattr(self.socket, name, value)
        self.socket.connect(f"ipc://{serving.path}")

    def send(self, agent: FakeAgent | None, kind: str, *payload: bytes, id: bytes = b"1", **fields: Any) -> None:
        header = json.dumps({"kind": kind, **fields}).encode()
        self.socket.send_multipart([id, agent.facts["id"].encode() if agent else b"", header, *payload])

    def receive(self) -> tuple[bytes, bytes, dict[str, Any], list[bytes]]:
        id, agent, header, *payload = self.socket.recv_multipart()
        return id, agent, json.loads(header), payload

    def ask(self, agent: FakeAgent | None, kind: str, *payload: bytes, **fields: Any) -> dict[str, Any]:
        self.send(agent, kind, *payload, **fields)
        while (header := self.receive()[2])["kind"] not in wire.TERMINAL:
            pass
        return header

    def hello(self, agent: FakeAgent) -> dict[str, Any]:
        return self.ask(agent, wire.HELLO, protocol=wire.PROTOCOL)


@pytest.fixture
def client() -> Iterator[Callable[..., Client]]:
    context = zmq.Context()
    yield lambda serving, **options: Client(context, serving, **options)
    context.destroy(0)


def test_it_names_its_agents(agent: Any, serving: Any, client: Any) -> None:
    zero, one = agent(0, world_size=2), agent(1, world_size=2)
    said = client(serving(zero, one)).ask(None, wire.AGENTS, protocol=wire.PROTOCOL)
    assert [(each["id"], each["rank"]) for each in said["agents"]] == [(zero.facts["id"], 0), (one.facts["id"], 1)]
    assert said["role"] == wire.CONTROL and said["protocol"] == wire.PROTOCOL


def test_another_protocol_is_refused_with_a_word(agent: Any, serving: Any, client: Any) -> None:
    said = client(serving(agent())).ask(None, wire.AGENTS, protocol=wire.PROTOCOL - 1)
    assert said["code"] == "protocol" and f"speaks protocol {wire.PROTOCOL}" in said["message"]


def test_each_request_goes_to_its_agent_and_each_reply_to_its_client(agent: Any, serving: Any, client: Any) -> None:
    zero, one = agent(0, world_size=2), agent(1, world_size=2)
    here = serving(zero, one)
    mine, yours = client(here), client(here)
    for asked in (mine, yours):  # with the same ids
        asked.send(zero, wire.HELLO, protocol=wire.PROTOCOL, id=b"7")
        asked.send(one, wire.HELLO, protocol=wire.PROTOCOL, id=b"8")
    for asked in (mine, yours):
        got = {asked.receive()[:2]: None for _ in range(2)}
        assert set(got) == {(b"7", zero.facts["id"].encode()), (b"8", one.facts["id"].encode())}
        assert not asked.socket.poll(50)


def test_a_server_for_readers_gives_no_more_than_their_role(agent: Any, serving: Any, client: Any) -> None:
    zero = agent()
    asked = client(serving(zero, role=wire.READ))
    assert asked.ask(zero, wire.SNAPSHOT)["kind"] == wire.AT
    assert asked.ask(zero, wire.HELLO, protocol=wire.PROTOCOL, role=wire.CONTROL)["role"] == wire.READ
    assert asked.ask(zero, wire.SET, settings={})["code"] == "read-only"
    assert {request.get("role") for request in zero.requests if request["kind"] == wire.HELLO} == {wire.READ}


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([b"1", b"", b"no JSON"], "protocol"), ([b"1", b"nobody", b'{"kind": "snapshot"}'], "gone"),
        ([b"1", b"", b'{"kind": "dance"}'], "protocol"),
        ([b"1", b"", b'{"kind": "agents", "protocol": 3, "ids": 7}'], "protocol"),
    ],
)  # fmt: skip
def test_what_it_cannot_pass_on_is_refused(
    agent: Any, serving: Any, client: Any, frames: list[bytes], code: str
) -> None:
    asked = client(serving(agent()))
    asked.socket.send_multipart(frames)
    assert asked.receive()[2]["code"] == code


def test_several_requests_in_one_message_go_to_all_their_agents(agent: Any, serving: Any, client: Any) -> None:
    agents = [agent(rank, world_size=2) for rank in (0, 1)]
    asked = client(serving(*agents))
    for each in agents:
        assert asked.hello(each)["kind"] == wire.WELCOME
    asked.send(None, wire.SEVERAL, requests=[[each.facts["id"], STAY] for each in agents])
    until(lambda: all(STAY in each.requests for each in agents))


@pytest.mark.parametrize(
    "second",
    [
        ["nobody", STAY], [5, STAY], ["\ud800", STAY], [None, STAY], "x", 7, ["ONE", {"kind": wire.SNAPSHOT}],
        ["ONE", {"kind": "dance"}], ["ONE", {"kind": []}], ["ONE", {}], ["ONE", 7], ["ONE"], ["ONE", STAY, STAY],
    ],
    ids=str,
)  # fmt: skip
def test_of_several_requests_none_is_passed_on_if_one_cannot_be(
    agent: Any, serving: Any, client: Any, second: Any
) -> None:
    zero, one = agent(0, world_size=2), agent(1, world_size=2)
    asked = client(serving(zero, one))
    for each in (zero, one):
        assert asked.hello(each)["kind"] == wire.WELCOME
    other = [one.facts["id"], *second[1:]] if isinstance(second, list) and second[0] == "ONE" else second
    asked.send(None, wire.SEVERAL, requests=[[zero.facts["id"], STAY], other])
    assert asked.receive()[2]["code"] == "protocol"
    assert asked.hello(zero)["kind"] == wire.WELCOME
    assert STAY not in zero.requests


def test_a_client_sends_several_requests_in_one_message(agent: Any, serving: Any, monkeypatch: Any) -> None:
    agents = [agent(rank, world_size=2) for rank in (0, 1)]
    here = serving(*agents)
    with contextlib.closing(reader.Client()) as asking:
        handshake.open_links(asking, [here.address], 5.0)
        sent: list[Any] = []
        monkeypatch.setattr(server_socket, "send_frames", lambda socket, frames: sent.append((socket, frames)))
        asking.send_several(wire.STAY, {link: {"of": str(link.rank)} for link in asking.links})
        (message,) = sent
        zmq_frames.send_frames(*message)
        for rank, each in enumerate(agents):
            until(lambda each=each, rank=rank: {"kind": wire.STAY, "of": str(rank)} in each.requests)


@pytest.mark.parametrize("frames", [[b"1"], [b"1", b"2"], [b"x" * 65, b"", b"{}"], [b"1"] * 100])
def test_what_is_no_request_is_dropped(agent: Any, serving: Any, client: Any, frames: list[bytes]) -> None:
    zero = agent()
    asked = client(serving(zero))
    asked.socket.send_multipart(frames)
    assert asked.hello(zero)["kind"] == wire.WELCOME
    assert not asked.socket.poll(0)


def test_a_request_to_an_agent_that_ends_is_over(agent: Any, serving: Any, client: Any) -> None:
    zero = agent()
    zero.deaf.add(wire.TENSORS)
    asked = client(serving(zero))
    asked.send(zero, wire.TENSORS)
    asked.ask(zero, wire.SNAPSHOT, id=b"2")
    connections = zero.server.connections
    zero.server.on_thread(lambda: [connections.drop(each) for each in list(connections._clients.values())], 5)
    assert asked.receive()[2]["code"] == "gone"


def test_a_connection_without_a_request_is_closed(agent: Any, serving: Any, client: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(relay, "_IDLE_S", 0.0)
    zero = agent()
    asked = client(serving(zero))
    asked.hello(zero)
    until(lambda: not zero.server.connections._clients)
    assert asked.hello(zero)["kind"] == wire.WELCOME


def test_so_many_clients_share_the_connections_and_more_are_refused(
    monkeypatch: Any, agent: Any, serving: Any, client: Any
) -> None:
    monkeypatch.setattr(server, "_LEAVING_S", 0.1)  # at the end three wait for answers that never come
    monkeypatch.setattr(relay, "_MOST_CONNECTIONS", 3)
    zero = agent()
    zero.deaf.add(wire.TENSORS)
    here = serving(zero)
    crowd = [client(here) for _ in range(6)]
    for asked in crowd:  # one after the other: who is idle gives way
        assert asked.hello(zero)["kind"] == wire.WELCOME
    for asked in crowd[:3]:
        asked.send(zero, wire.TENSORS)
        asked.ask(zero, wire.SNAPSHOT, id=b"2")
    assert crowd[3].hello(zero)["code"] == "full"


def test_a_client_that_does_not_read_is_dropped_and_delays_nobody(agent: Any, serving: Any, client: Any) -> None:
    zero = agent(ring_bytes=1 << 22)
    for start in range(20_000):
        zero.span(start, start + 1)
    here = serving(zero)
    stuck = client(here, rcvhwm=1)
    asked = client(here)
    scan = {"stream": "spans", "first": 1, "last": 20_000, "credit": 64, "patch": []}
    for number in range(400):
        stuck.send(zero, wire.SCAN, b"", id=b"%d" % number, **scan)
        if number % 50 == 0:
            assert asked.hello(zero)["kind"] == wire.WELCOME


def test_no_client_gets_memory_whatever_its_role(agent: Any, serving: Any, client: Any) -> None:
    zero = agent()
    asked = client(serving(zero))
    asked.hello(zero)
    assert asked.ask(zero, wire.MEMORY)["code"] == "read-only"
    assert wire.MEMORY not in [request["kind"] for request in zero.requests]


def test_a_client_that_has_gone_does_not_keep_its_place_at_a_silent_agent(
    agent: Any, serving: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had asked for would have been answered at once; an eval may take any time."""
    one = agent()
    one.deaf = {wire.SNAPSHOT, wire.ARM}
    server = serving(one)
    asks, evaluates = client(server), client(server)
    for each, kind in ((asks, wire.SNAPSHOT), (evaluates, wire.ARM)):
        each.hello(one)
        each.send(one, kind)
    backends = server._server._relay._backends
    until(lambda: [{*each.pending.values()} for each in [*backends.values()]] == [{wire.SNAPSHOT}, {wire.ARM}])
    monkeypatch.setattr(relay, "_GIVEN_UP_S", 0.3)  # earlier, one might be gone before the other has asked
    until(lambda: len(backends) == 1)
    time.sleep(0.5)
    assert [{*each.pending.values()} for each in backends.values()] == [{wire.ARM}]
    one.close()  # the server would wait for its answer
