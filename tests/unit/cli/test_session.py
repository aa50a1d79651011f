"""What a connection of the command tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import FakeAgent

import probe
from probe.cli.session import connected as session
from probe.connection import Connection
from probe.serve import replacing


@pytest.mark.parametrize("served", [{"server": "ipc:///nowhere", "tcp": None}, None], ids=["lost", "never had"])
def test_what_keeps_a_server_from_starting_again_is_told_once(
    served: Any, agent: Callable[..., FakeAgent], connected: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A job that was attached without one has none because that was wanted, or could not be, which attach has told."""

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    found = connected(agent(served=served))
    monkeypatch.setattr(probe, "connect", lambda *_, **__: found)
    monkeypatch.setattr(replacing, "prepare", full)
    with session("4242") as connection:
        connection.set()
    told = "No server beside the job: No space left on device. Its agents answer themselves.\n"
    assert capfd.readouterr().err == (told if served else "")
