"""The client itself, without an agent."""

from __future__ import annotations

import os
import time

import pytest

from probe import protocol as wire
from probe.client.client import Client
from probe.client.endpoints import Address
from probe.errors import SilentError


@pytest.mark.timeout(10)
def test_a_path_too_long_for_a_socket_is_said_and_the_client_still_closes() -> None:
    client = Client()
    client.connect(Address(f"ipc:///{'x' * 200}", os.getpid()))
    (call,) = client.ask(wire.SNAPSHOT, time.monotonic() + 5)
    assert isinstance(call.error, SilentError)
    assert f"Rank 0 (pid {os.getpid()}) cannot be reached at /{'x' * 200}: AF_UNIX path too long" in str(call.error)
    client.close()
