"""The end of an attach: the command has the answer whole, whoever else holds the target's end of the connection."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from probe.attach import bootstrap
from probe.attach.deferred_signals import DeferredSignals
from probe.attach.delivery import _TargetConnection

FORKED = """
def _follow(connection, order):
    import os
    connection.sendall(b"OK%d" % os.dup(connection.fileno()))  # as a loader's worker has it that is forked meanwhile
"""


@pytest.fixture
def target(short_folder: Path) -> Iterator[socket.socket]:
    """The command's end of a connection on which the bootstrap has said hello."""
    scope: dict[str, object] = {}
    exec(bootstrap._HELLO, scope)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short_folder}/s")
        listener.listen()
        thread = threading.Thread(target=scope["_connect"], args=(f"{short_folder}/s", "key"))  # type: ignore[arg-type]
        thread.start()
        connection, _ = listener.accept()
    connection.settimeout(5.0)
    with connection:
        assert json.loads(connection.makefile().readline())["key"] == "key"
        yield connection
    thread.join()


def test_an_answer_ends_although_a_child_forked_meanwhile_holds_the_connection(target: socket.socket) -> None:
    order = json.dumps({"start": ["bootstrap", False, FORKED, ""]}).encode()
    target.sendall(len(order).to_bytes(8, "little") + order)
    answer = b"".join(iter(lambda: target.recv(100), b""))
    os.close(int(answer.removeprefix(b"OK")))


@pytest.mark.parametrize("ending", [b"\n", b""], ids=["still open", "closed"])
def test_a_whole_answer_is_taken_at_once(ending: bytes) -> None:
    ours, theirs = socket.socketpair()
    deadline = time.monotonic() + 5.0
    with theirs, DeferredSignals() as signals, closing(_TargetConnection(os.getpid(), deadline, signals)) as connection:
        connection._socket.close()
        connection._socket = ours
        theirs.sendall(b'OK{"pid": 7}' + ending)
        if not ending:
            theirs.close()
        assert connection.receive_answer().rstrip() == b'OK{"pid": 7}'
