"""Fake agents, and connections to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_agent import FakeAgent, resolved
from serving import Serving

from probe.connection import Connection
from probe.host import agent_memory


@pytest.fixture
def agent(short_folder: Path) -> Iterator[Callable[..., FakeAgent]]:
    """Makes agents and closes them with the test."""
    made: list[FakeAgent] = []

    def make(rank: int = 0, **options: Any) -> FakeAgent:
        made.append(FakeAgent(short_folder, rank, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def serving(short_folder: Path) -> Iterator[Callable[..., Serving]]:
    """Makes servers for agents and closes them with the test."""
    made: list[Serving] = []

    def make(*agents: FakeAgent, **options: Any) -> Serving:
        made.append(Serving(short_folder, *agents, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Connection]]:
    """Connects to agents and closes the connections with the test.  They share a process: what lies in its memory is
    of no one of them, so none is read."""
    monkeypatch.setattr(agent_memory, "facts", lambda pid: None)
    made: list[Connection] = []

    def make(*agents: FakeAgent, timeout: float = 5.0) -> Connection:
        made.append(Connection(resolved(*agents), timeout))
        return made[-1]

    yield make
    for each in made:
        each.close()
