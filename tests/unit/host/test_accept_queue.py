"""Connections that a server has not accepted yet."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

from probe.host.accept_queue import waiting_connections


def test_connections_are_counted_until_they_are_accepted() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        before = waiting_connections(os.getpid())
        for _ in range(3):
            stack.enter_context(socket.create_connection(server.getsockname()))
        assert before is not None and waiting_connections(os.getpid()) == before + 3
        stack.enter_context(server.accept()[0])
        assert waiting_connections(os.getpid()) == before + 2


def test_a_process_that_is_gone_has_none_that_are_known() -> None:
    assert waiting_connections(2**22 + 1) is None
