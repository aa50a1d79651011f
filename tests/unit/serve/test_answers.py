"""The server's side of a question in SQL, with a process that never answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from until import until

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
    os.kill(process.pid, signal.SIGSTOP)


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
