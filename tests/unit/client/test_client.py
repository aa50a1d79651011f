"""The client's own edges: what cannot even be connected to."""

from __future__ import annotations

import pytest

from probe.client.client import Client
from probe.client.endpoints import Address
from probe.errors import SilentError


@pytest.mark.timeout(10)
def test_a_path_too_long_for_a_socket_is_said_and_the_client_still_closes() -> None:
    client = Client()
    with pytest.raises(SilentError, match=r"Rank 0 \(pid 7\) cannot be reached at ipc:///x+: File name too long"):
        client.connect(Address(f"ipc:///{'x' * 200}", 7))
    client.close()
