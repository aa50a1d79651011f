"""The process that answers for a server."""

from __future__ import annotations

import socket
import subprocess
import sys

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
