"""The server's side of a question in SQL, with a process that never answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from limited import Cgroup, put_into
from until import stop, until

from probe import protocol as wire
from probe.host.processes import has_ended, namespace
from probe.serve import answers, sibling
from probe.serve.relay import Client, Frontend

CLIENT = Client(Frontend(None, wire.CONTROL), b"c", wire.CONTROL)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as made:
        monkeypatch.setattr(sibling, "spawn", lambda command, descriptors: made.pid)
        yield made
        made.kill()


@pytest.fixture
def asked(process: subprocess.Popen[bytes]) -> tuple[answers.Answers, list[Any]]:
    """With a question that is being answered, and the replies to it."""
    replies: list[Any] = []
    relay: Any = SimpleNamespace(
        watch=lambda *_: None, forget=lambda *_: None, reply=lambda client, frames: replies.append(frames[2]) or True
    )
    agents: Any = SimpleNamespace(processes=lambda ids: {})
    made = answers.Answers({"endpoint": "ipc:///none"}, agents, relay)
    question = {"kind": wire.QUERY, "protocol": wire.PROTOCOL, "pids": namespace(os.getpid(), "pid")}
    made.take(CLIENT, b"1", question)
    made.tidy()
    assert made.is_busy and not replies
    return made, replies


def is_stopped(made: answers.Answers, process: subprocess.Popen[bytes]) -> None:
    stop(process.pid)


def is_too_large(made: answers.Answers, process: subprocess.Popen[bytes]) -> None:
    made._most_memory = 1 << 10


def goes_on_regardless(made: answers.Answers, process: subprocess.Popen[bytes]) -> None:
    made.take(CLIENT, b"2", {"kind": wire.CANCEL, "of": "1"})
    made._withdrawn = -answers._ENDS_S


@pytest.mark.parametrize("what", [is_stopped, is_too_large, goes_on_regardless])
def test_a_process_that_cannot_go_on_is_ended_and_its_client_told(
    asked: tuple[answers.Answers, list[Any]], process: subprocess.Popen[bytes], what: Callable[..., None]
) -> None:
    made, replies = asked
    what(made, process)

    def ended() -> bool:
        made.tidy()
        return has_ended(process.pid)

    until(ended, 10)
    assert not made.is_busy and json.loads(replies[0])["kind"] == wire.ERROR and len(replies) == 1


def test_a_process_is_ended_once_the_container_has_less_left_than_it_holds(
    asked: tuple[answers.Answers, list[Any]], process: subprocess.Popen[bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The kernel would not end it first, but all of the container at once."""
    made, _ = asked
    container = Cgroup(used=924, as_one=True)
    put_into(container, folder=tmp_path, monkeypatch=monkeypatch)
    made.tidy()
    assert made.is_busy and not has_ended(process.pid)
    put_into(container._replace(used=1024), folder=tmp_path, monkeypatch=monkeypatch)
    made.tidy()
    assert not made.is_busy
    until(lambda: has_ended(process.pid), 10)


PART = {"kind": wire.PART, "protocol": wire.PROTOCOL, "ids": []}


def at_a_port(role: str) -> Client:
    return Client(Frontend(None, ""), b"p", role)


def idle() -> tuple[answers.Answers, list[bytes]]:
    replies: list[bytes] = []
    relay: Any = SimpleNamespace(
        watch=lambda *_: None, forget=lambda *_: None, reply=lambda client, frames: replies.append(frames[2]) or True
    )
    agents: Any = SimpleNamespace(processes=lambda ids: {})
    return answers.Answers({"endpoint": "ipc:///none"}, agents, relay), replies


@pytest.mark.parametrize("kind", [wire.QUERY, wire.PART])
def test_a_reader_at_a_port_has_no_sql_run(kind: str) -> None:
    with pytest.raises(wire.WireError, match="declined"):
        idle()[0].take(at_a_port(wire.READ), b"1", {**PART, "kind": kind})


def test_who_controls_the_job_from_elsewhere_has_parts_and_no_queries(process: subprocess.Popen[bytes]) -> None:
    made, _ = idle()
    with pytest.raises(wire.WireError, match="declined"):
        made.take(at_a_port(wire.CONTROL), b"1", {**PART, "kind": wire.QUERY})
    made.take(at_a_port(wire.CONTROL), b"1", PART)
    assert made.is_busy
    made.close()


def test_a_process_that_ended_by_itself_is_started_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []
    replies: list[bytes] = []
    relay: Any = SimpleNamespace(
        watch=lambda _, receive: received.append(receive), forget=lambda *_: None,
        reply=lambda client, frames: replies.append(frames[2]) or True,
    )  # fmt: skip
    made = answers.Answers({"endpoint": "ipc:///none"}, SimpleNamespace(processes=lambda ids: {}), relay)  # type: ignore[arg-type]
    for _ in range(2):
        with subprocess.Popen(["true"]) as ended:
            monkeypatch.setattr(sibling, "spawn", lambda command, descriptors, ended=ended: ended.pid)
            made.take(at_a_port(wire.CONTROL), b"1", PART)
            received[-1]()  # its end of the connection is closed
            assert not made.is_busy and json.loads(replies[-1])["kind"] == wire.ERROR
    with pytest.raises(wire.WireError, match="ended twice"):
        made.take(at_a_port(wire.CONTROL), b"1", PART)


def test_a_part_that_nobody_waits_for_is_withdrawn(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_UNWANTED_S", 0.0)
    monkeypatch.setattr(answers, "_ENDS_S", 0.0)
    made, replies = idle()
    made.take(at_a_port(wire.CONTROL), b"1", PART)

    def given_up() -> bool:
        made.tidy()
        return not made.is_busy

    until(given_up, 10)
    assert json.loads(replies[0])["kind"] == wire.ERROR


def test_parts_wait_for_their_turn(asked: tuple[answers.Answers, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readers of several hosts would each have the parts of some of them, and neither an answer."""
    made, replies = asked
    first, second, third = at_a_port(wire.CONTROL), at_a_port(wire.CONTROL), at_a_port(wire.CONTROL)
    for number, client in enumerate((first, second, third)):
        made.take(client, b"%d" % number, PART)
    assert made._asked is not None and made._asked.client == CLIENT and not replies
    made.take(second, b"9", {"kind": wire.CANCEL, "of": "1"})
    assert "cancelled" in json.loads(replies.pop())["message"]
    made.take(first, b"0", {"kind": wire.NEXT, "credit": 0})  # it is still wanted, and keeps its place
    made._asked = None  # as once it is answered
    made.tidy()
    assert made._asked is not None and made._asked[1:] == (first, b"0") and len(made._waiting) == 1
    monkeypatch.setattr(answers, "_UNWANTED_S", -1.0)
    made.tidy()
    assert not made._waiting
    with pytest.raises(wire.WireError, match="another question"):
        for number in range(answers._MOST_WAITING + 1):
            made.take(first, b"%d" % number, PART)
    made.close()


def test_a_query_does_not_wait(asked: tuple[answers.Answers, list[Any]]) -> None:
    question = {"kind": wire.QUERY, "protocol": wire.PROTOCOL, "pids": namespace(os.getpid(), "pid")}
    with pytest.raises(wire.WireError, match="another question"):
        asked[0].take(CLIENT, b"2", question)
    asked[0].close()
