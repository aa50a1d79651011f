"""The process that answers for a server."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from limited import MB, Cgroup, put_into

from probe.cli import answers

ANSWERING = """
import socket
from probe.cli.answers import Answering
Answering(socket.socket(fileno=0), "read", 1 << 30).run()
"""


def test_it_ends_with_a_request_that_it_cannot_take() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen([sys.executable, "-c", ANSWERING], stdin=theirs, stderr=subprocess.DEVNULL)
        ours.sendall(b"\xff" * 64)
        assert process.wait(60) == 1


def test_duckdb_takes_a_quarter_of_what_a_container_that_is_ended_as_a_whole_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(answers, "config", lambda: {"role": "read"})
    monkeypatch.setattr(answers, "confine", lambda *_: None)
    monkeypatch.setattr(answers, "socket", SimpleNamespace(socket=lambda fileno: None))
    monkeypatch.setattr(
        answers, "Answering", lambda server, role, memory: SimpleNamespace(run=lambda: given.append(memory))
    )
    monkeypatch.setattr(answers, "os", SimpleNamespace(environ={}))  # main() sets a variable
    put_into(Cgroup(most=8192, used=7992, as_one=True), folder=tmp_path, monkeypatch=monkeypatch)
    answers.main()
    assert given == [50 * MB]
