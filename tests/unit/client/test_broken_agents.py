"""An agent that is broken, or no agent at all: one line that names the rank, never a traceback and never a hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_agent import MODEL, FakeAgent
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from probe import protocol as wire
from probe.client import reply_schema
from probe.connection import Connection
from probe.errors import ProbeError
from probe.snapshot.log import Log
from probe.streams import EVAL

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]

SQL = "SELECT count(*) n, count(DISTINCT rank) ranks FROM python.torch_trace"
REQUESTS = [wire.HELLO, wire.SNAPSHOT, wire.SCAN, wire.LOG, wire.MEMORY, wire.FLIGHT, wire.SET, wire.ARM, wire.DETACH]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def broken() -> Iterator[FakeAgent]:
    """One whose answers a test makes."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="probe-test-") as folder:
        agent = FakeAgent(Path(folder), 3)
        agent.name_modules()
        agent.train(5)
        yield agent
        agent.close()


def answering(agent: FakeAgent, kind: str, frames: list[bytes]) -> Callable[[], None]:
    """Have it answer these frames to that kind of request; the result puts back what it did before."""
    before = agent.server.handlers.get(kind)

    def handle(key: Any, request: dict[str, Any], payload: Any) -> None:
        agent.send(key, frames)

    agent.server.handlers[kind] = handle

    def put_back() -> None:
        if before is None:
            del agent.server.handlers[kind]
        else:
            agent.server.handlers[kind] = before

    return put_back


def uses(connection: Connection) -> list[Callable[[], Any]]:
    """What a user may do; each must end in time, in a result or in an error of ours."""
    return [
        lambda: connection.query(SQL),
        lambda: connection.query("SELECT * FROM probe.agents"),
        lambda: connection.query("SELECT * FROM python.stack"),
        lambda: connection.query("SELECT * FROM python.nccl_trace"),
        lambda: connection.stacks(),
        lambda: connection.hang(0.0),
        lambda: connection.set(sample=1),
        lambda: connection.eval("1", now=True, timeout=0.1),
    ]


def survives(agent: FakeAgent, kind: str, frames: list[bytes]) -> None:
    from fake_agent import resolved

    put_back = answering(agent, kind, frames)
    try:
        with Connection(resolved(agent), 0.05) as connection:
            for use in uses(connection):
                try:
                    use()
                except ProbeError as error:
                    assert "\n" not in error.message or error.code in ("query", "snippet")
    except ProbeError as error:
        assert str(error)
    finally:
        put_back()


@pytest.fixture(autouse=True)
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent shares this process: what lies in its memory is not read."""
    from probe.host import agent_memory

    monkeypatch.setattr(agent_memory, "facts", lambda pid: None)


SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@SLOW
@given(st.sampled_from(REQUESTS), st.lists(st.binary(max_size=40), min_size=1, max_size=4))
def test_bytes_that_are_no_answer(broken: FakeAgent, kind: str, frames: list[bytes]) -> None:
    survives(broken, kind, frames)


@pytest.mark.slow
@SLOW
@given(st.sampled_from(REQUESTS), st.sampled_from(sorted(reply_schema.REPLIES)), st.data())
def test_answers_with_fields_of_any_type(broken: FakeAgent, kind: str, answer: str, data: st.DataObject) -> None:
    names = [name.rstrip("?") for name in reply_schema.REPLIES[answer]]
    fields = {name: data.draw(JSON) for name in names}
    assume(fields.get("code") not in ("interrupted",))
    frames = [wire.encode(answer, **fields), *data.draw(st.lists(st.binary(max_size=80), max_size=3))]
    survives(broken, kind, frames)


@pytest.mark.slow
@SLOW
@given(st.sampled_from(sorted(reply_schema.FACTS)), JSON, st.sampled_from([wire.WELCOME, wire.AT]))
def test_facts_of_any_type(broken: FakeAgent, name: str, value: Any, answer: str) -> None:
    facts = {**broken.now(), name.rstrip("?"): value}
    at = {name: stream.position() for name, stream in broken.streams.items()}
    header = wire.encode(answer, facts=facts, streams=at, log=broken.log.committed)
    survives(broken, wire.HELLO if answer == wire.WELCOME else wire.SNAPSHOT, [header])


@pytest.mark.slow
@pytest.mark.parametrize("answer", [wire.WELCOME, wire.AT])
@pytest.mark.parametrize(
    "said", [{}, dict.fromkeys(name.rstrip("?") for name in reply_schema.FACTS if name.endswith("?"))]
)
def test_facts_that_tell_nothing(broken: FakeAgent, answer: str, said: dict[str, None]) -> None:
    """What may be missing is missing, or null; all of it, and one by one what has been read as if it were there."""
    optional = {name.rstrip("?") for name in reply_schema.FACTS if name.endswith("?")}
    at = {name: stream.position() for name, stream in broken.streams.items()}
    for gone in (optional, {"python"}, {"attached_ns"}):
        facts = {name: value for name, value in broken.now().items() if name not in gone}
        facts |= {name: value for name, value in said.items() if name in gone}
        header = wire.encode(answer, facts=facts, streams=at, log=broken.log.committed)
        survives(broken, wire.HELLO if answer == wire.WELCOME else wire.SNAPSHOT, [header])


@pytest.mark.slow
@SLOW
@given(st.integers(-5, 1 << 63), st.integers(0, 1 << 63), st.integers(0, 400), st.integers(0, 1 << 63))
def test_rows_that_cannot_be(broken: FakeAgent, first: int, rows: int, size: int, end: int) -> None:
    def handle(key: Any, request: dict[str, Any], payload: Any) -> None:
        broken.send(key, [wire.encode(wire.ROWS, first=first, rows=rows), b"", b"\1" * size])
        broken.server.reply(key, wire.END, rows=end)

    before, broken.server.handlers[wire.SCAN] = broken.server.handlers[wire.SCAN], handle
    try:
        survives(broken, wire.FLIGHT, [wire.encode(wire.ERROR, code="agent", message="no")])
    finally:
        broken.server.handlers[wire.SCAN] = before


def two(agent: Make) -> list[FakeAgent]:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.name_modules()
        one.train(5, group_seq=0)
    return ranks


def lies(agent: FakeAgent, **changes: Callable[[Any], Any]) -> None:
    """Its scans have these fields changed: first and rows of each message, its data, and what the end says."""

    def handle(key: Any, request: dict[str, Any], payload: Any) -> None:
        stream = agent.streams[request["stream"]]
        pieces = list(stream.read(request["first"], min(request["last"], stream.position()), 8))
        sent = 0
        for first, data in pieces:
            rows = len(data) // stream.row_bytes
            fields = {"first": first, "rows": rows}
            told = {name: changes.get(name, int)(value) for name, value in fields.items()}
            agent.send(key, [wire.encode(wire.ROWS, **told), b"", changes.get("data", bytes)(bytes(data))])
            sent += rows
        agent.server.reply(key, wire.END, rows=changes.get("end", int)(sent))

    agent.server.handlers[wire.SCAN] = handle


@pytest.mark.parametrize(
    "lie",
    [
        {"rows": lambda rows: rows + 1},
        {"rows": lambda rows: 0},
        {"first": lambda first: 1},
        {"first": lambda first: first + 10_000},
        {"first": lambda first: first - 9},
        {"data": lambda data: data[:-5]},
        {"data": lambda data: data[: len(data) // 2]},
        {"data": lambda data: b""},
        {"end": lambda rows: rows + 1},
        {"end": lambda rows: 0},
    ],
)
def test_a_rank_that_lies_about_its_rows_is_left_out_and_the_other_one_is_seen(
    agent: Make, connected: Connect, lie: dict[str, Callable[[Any], Any]]
) -> None:
    ranks = two(agent)
    connection = connected(*ranks, timeout=2.0)
    whole = connection.query(SQL).to_pylist()
    lies(ranks[1], **lie)
    connection = connected(*ranks, timeout=2.0)  # one that has not read anything yet
    result = connection.query(SQL)
    (half,) = result.to_pylist()
    assert half == {"n": whole[0]["n"] // 2, "ranks": 1}
    assert any("silent: 1" in note.text for note in result.notes)


def test_a_rank_that_tells_the_truth_in_small_messages_is_seen(agent: Make, connected: Connect) -> None:
    ranks = two(agent)
    connection = connected(*ranks, timeout=2.0)
    whole = connection.query(SQL).to_pylist()
    lies(ranks[1])
    connection = connected(*ranks, timeout=2.0)
    assert connection.query(SQL).to_pylist() == whole


def test_a_rank_that_sends_the_same_rows_for_ever_is_left_out(agent: Make, connected: Connect) -> None:
    ranks = two(agent)
    connection = connected(*ranks, timeout=1.0)

    def handle(key: Any, request: dict[str, Any], payload: Any) -> None:
        stream = ranks[1].streams[request["stream"]]

        def messages() -> Iterator[Any]:
            while True:
                for first, data in stream.read(1, 4, 4):
                    yield 4, [wire.encode(wire.ROWS, first=first, rows=4), b"", bytes(data)]

        ranks[1].server.stream(key, request["credit"], messages())

    ranks[1].server.handlers[wire.SCAN] = handle
    begun = time.monotonic()
    (row,) = connection.query(SQL).to_pylist()
    assert row["ranks"] == 1 and time.monotonic() - begun < 30


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_a_header_is_an_object_with_a_kind_or_none(frame: bytes) -> None:
    try:
        header = wire.decode(frame)
    except wire.WireError:
        return
    assert isinstance(header["kind"], str)


@pytest.mark.slow
@given(JSON.filter(lambda value: value == value))
@settings(max_examples=300, deadline=None)
def test_every_reply_is_read_or_refused_by_name(value: Any) -> None:
    import json

    for kind in reply_schema.REPLIES:
        for name in reply_schema.REPLIES[kind]:
            frame = json.dumps({"kind": kind, name.rstrip("?"): value}).encode()
            try:
                reply_schema.check(wire.decode(frame), 2)
            except wire.WireError as error:
                assert str(error)


@pytest.mark.parametrize("text", ["9" * 30, "9" * 1_000_000, "-9223372036854775809", "NaN", "-Infinity"])
def test_numbers_that_no_slot_holds_are_no_numbers(text: str) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(b'{"kind": "hello", "protocol": ' + text.encode() + b"}")


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9), st.binary(max_size=30)), max_size=6),
    st.binary(max_size=9),
)
@settings(max_examples=200, deadline=None)
def test_a_log_of_any_bytes_is_read_as_far_as_it_is_one(records: list[tuple[int, int, bytes]], rest: bytes) -> None:
    import struct

    log = Log()
    data = b"".join(
        struct.pack("<IIQ", kind, len(text), id) + text + bytes(-len(text) % 8) for kind, id, text in records
    )
    log.feed(data + rest)
    assert log.end <= 8 + len(data) + len(rest)


def test_marks_of_a_kind_that_nobody_knows_and_threads_with_any_number(agent: Make, connected: Connect) -> None:
    one, plain = agent(), agent()
    for each in (one, plain):
        each.name_modules()
    for step in range(40):
        start = step * 1000
        for place, odd in enumerate((1 << 62, -(1 << 62), 0, 1, 2, 3, 4, 5)):
            one.span(start + 901 + place, start + 902 + place, 0, EVAL, thread=odd)
        one.mark(start + 450, MODEL, 250)
        for each in (one, plain):
            each.train(1, start)
    sql = "SELECT step, module, stage, SUM(duration) FROM python.torch_trace GROUP BY ALL ORDER BY ALL"
    assert connected(one).query(sql).table == connected(plain).query(sql).table


def test_a_rank_that_has_confirmed_and_ended_before_another_answers_was_reached(
    agent: Make, connected: Connect
) -> None:
    slow, fast = agent(rank=0, world_size=2), agent(rank=1, world_size=2)

    def later(key: Any, request: dict[str, Any], payload: Any) -> None:
        threading.Timer(0.5, lambda: slow.server.post(key, wire.DETACHED, left=[])).start()

    def at_once(key: Any, request: dict[str, Any], payload: Any) -> None:
        fast.server.reply(key, wire.DETACHED, left=["a callback"])
        fast.server.connections.drop(key[0])

    slow.server.handlers[wire.DETACH], fast.server.handlers[wire.DETACH] = later, at_once
    connection = connected(slow, fast)
    assert connection.detach() == ["rank 1: a callback"]
    assert connection.unreached == []
