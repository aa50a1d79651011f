"""Rows that the server reads out of an agent's memory itself."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import zmq
from fake_agent import FakeAgent
from serving import Named, Serving

from probe import protocol as wire
from probe.client.endpoints import Resolved
from probe.connection import Connection
from probe.host import agent_memory
from probe.serve import scans
from probe.streams import STREAMS


class Readable(Named):
    """Agents whose memory may be read: there is only one in this process."""

    def pid(self, id: bytes) -> int | None:
        return int(self._agents[id.decode()].facts["pid"])

    def slots(self, id: bytes, stream: Any) -> tuple[str, ...] | None:
        return STREAMS.get(stream)


@pytest.fixture
def one(agent: Any, serving: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeAgent, Serving]:
    monkeypatch.setattr("serving.Named", Readable)
    made = agent()
    for start in range(20_000):
        made.span(start, start + 1)
    made.publish()
    return made, serving(made)


@pytest.fixture
def socket(one: tuple[FakeAgent, Serving]) -> Iterator[Any]:
    context = zmq.Context()
    made = context.socket(zmq.DEALER)
    made.linger, made.rcvtimeo = 0, 10_000
    made.connect(f"ipc://{one[1].path}")
    yield made
    context.destroy(0)


def scan(socket: Any, agent: FakeAgent, *payload: bytes, **fields: Any) -> tuple[list[bytes], dict[str, Any]]:
    """The payloads of the rows, and the last header."""
    header = {"kind": wire.SCAN, "stream": "spans", "first": 1, "last": 20_000, "credit": 64, **fields}
    socket.send_multipart([b"1", agent.facts["id"].encode(), json.dumps(header).encode(), *payload])
    came = []
    while True:
        _, _, said, *rows = socket.recv_multipart()
        if json.loads(said)["kind"] != wire.ROWS:
            return came, json.loads(said)
        came.append(b"".join(rows))


def test_a_client_without_a_template_gets_columns(one: tuple[FakeAgent, Serving], socket: Any) -> None:
    came, end = scan(socket, one[0])
    table = pa.ipc.open_stream(b"".join(came)).read_all()
    table.validate(full=True)
    assert tuple(table.column_names) == STREAMS["spans"] and end == {"kind": "end", "rows": 20_000}
    assert table.column("seq").to_pylist() == list(range(1, 20_001))
    assert table.column("end_ns").to_pylist() == list(range(1, 20_001))
    assert not [request for request in one[0].requests if request["kind"] == wire.SCAN]


def test_while_libraries_are_imported_others_are_answered(
    one: tuple[FakeAgent, Serving], socket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full machine that takes seconds; the agents themselves send the rows that have a template meanwhile."""
    begun, may_end = threading.Event(), threading.Event()

    def slow_import(name: str) -> Any:
        begun.set()
        assert may_end.wait(30)
        return importlib.import_module(name)

    monkeypatch.setattr(scans, "import_module", slow_import)
    agent = one[0].facts["id"].encode()
    raw = {"kind": wire.SCAN, "stream": "spans", "first": 1, "last": 20_000, "credit": 64}
    try:
        socket.send_multipart([b"raw", agent, json.dumps(raw).encode()])
        assert begun.wait(10)
        _, end = scan(socket, one[0], b"template", patch=[])
        assert end["kind"] == wire.END and [request["kind"] for request in one[0].requests].count(wire.SCAN) == 1
        snapshot = {"kind": wire.SNAPSHOT}
        socket.send_multipart([b"2", agent, json.dumps(snapshot).encode()])
        id, _, said = socket.recv_multipart()
        assert (id, json.loads(said)["kind"]) == (b"2", wire.AT)
    finally:
        may_end.set()
    rows = 0
    while json.loads((answer := socket.recv_multipart())[2])["kind"] == wire.ROWS:
        assert answer[0] == b"raw"
        rows += json.loads(answer[2])["rows"]
    assert rows == 20_000 and json.loads(answer[2])["kind"] == wire.END


def test_our_own_client_gets_what_the_agent_would_send(
    one: tuple[FakeAgent, Serving], socket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(socket, one[0])  # until it has imported what it needs, the agent does send
    read: list[str] = []
    take = scans.Scans.take

    def counted(self: Any, request: Any, header: Any, payload: Any) -> bool:
        taken = take(self, request, header, payload)
        read.extend([header["stream"]] if taken and header["kind"] == wire.SCAN else [])
        return taken

    monkeypatch.setattr(scans.Scans, "take", counted)
    monkeypatch.setattr(agent_memory, "here", lambda facts: None)  # as on another host
    with Connection(Resolved("there", [one[1].address]), 5.0) as job:
        rows = job.snapshot().ranks[0].rows("spans")
    assert rows["seq"].tolist() == list(range(1, 20_001)) and read == ["spans"]


def test_a_scan_of_rows_that_are_not_there_is_the_agents(one: tuple[FakeAgent, Serving], socket: Any) -> None:
    came, end = scan(socket, one[0], b"", last=1 << 62, patch=[])
    assert end["rows"] == 20_000 and sum(map(len, came)) == 20_000 * 8 * len(STREAMS["spans"])
    came, end = scan(socket, one[0], last=1 << 62)
    assert (came, end["code"]) == ([], "protocol") and "is not there" in end["message"]


@pytest.mark.parametrize(
    "fields",
    [{"first": -(1 << 60)}, {"last": -1}, {"last": 0}, {"first": "x"}, {"credit": None}, {"since": ["x", 1]},
     {"since": 3}, {"patch": [[1 << 40, 8]]}, {"patch": 7}, {"stream": ["spans"]}, {"stream": None}],
    ids=str,
)  # fmt: skip
def test_a_malformed_scan_harms_nobody(one: tuple[FakeAgent, Serving], socket: Any, fields: dict[str, Any]) -> None:
    for payload in ((), (bytes(64),)):
        _, end = scan(socket, one[0], *payload, **{"patch": [], **fields})
        assert end["kind"] in (wire.ERROR, wire.END)
    assert scan(socket, one[0])[1] == {"kind": "end", "rows": 20_000}


def test_a_scan_waits_for_credit_and_ends_when_it_is_cancelled(one: tuple[FakeAgent, Serving], socket: Any) -> None:
    agent = one[0].facts["id"].encode()
    header = {"kind": wire.SCAN, "stream": "spans", "first": 1, "last": 20_000, "credit": 1}
    socket.send_multipart([b"1", agent, json.dumps(header).encode()])
    assert json.loads(socket.recv_multipart()[2])["kind"] == wire.ROWS and not socket.poll(100)
    socket.send_multipart([b"1", agent, b'{"kind": "next", "credit": 1}'])
    assert json.loads(socket.recv_multipart()[2])["kind"] == wire.ROWS and not socket.poll(100)
    socket.send_multipart([b"2", agent, b'{"kind": "cancel", "of": "1"}'])
    assert json.loads(socket.recv_multipart()[2])["code"] == "interrupted"


def test_more_scans_than_are_sent_at_once_wait_for_their_turn(one: tuple[FakeAgent, Serving], socket: Any) -> None:
    """A client has one for each rank of the host."""
    scan(socket, one[0])  # until it has imported what it needs, the agent sends
    begin(socket, one[0], *[64] * 20)
    assert ends(socket, 20) == {number: {"kind": "end", "rows": 20_000} for number in range(20)}


def test_a_scan_that_waits_for_its_turn_is_not_given_up(
    one: tuple[FakeAgent, Serving], socket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before it are, since their client asks for nothing."""
    scan(socket, one[0])
    monkeypatch.setattr(wire, "IDLE_SECONDS", 0.5)
    begin(socket, one[0], 1, 1, 1, 1, 64)
    ended = ends(socket, 5)
    assert [ended[number].get("code") for number in range(4)] == ["agent"] * 4
    assert ended[4] == {"kind": "end", "rows": 20_000}


def begin(socket: Any, agent: FakeAgent, *credits: int) -> None:
    """A scan for each, numbered from 0."""
    for number, credit in enumerate(credits):
        header = {"kind": wire.SCAN, "stream": "spans", "first": 1, "last": 20_000, "credit": credit}
        socket.send_multipart([b"%d" % number, agent.facts["id"].encode(), json.dumps(header).encode()])


def ends(socket: Any, count: int) -> dict[int, dict[str, Any]]:
    """The last headers of so many scans."""
    found: dict[int, dict[str, Any]] = {}
    while len(found) < count:
        id, _, said, *_ = socket.recv_multipart()
        if json.loads(said)["kind"] != wire.ROWS:
            found[int(id)] = json.loads(said)
    return found
