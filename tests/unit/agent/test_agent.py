"""The agent as a whole, in the process of the tests: it starts wherever the job stands, and leaves nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from probe.agent.agent import Agent
from probe.agent.serve.listening import Listener


@pytest.fixture
def agent(short_folder: Path) -> Iterator[Agent]:
    """Not started."""
    made = Agent(Listener(f"{short_folder}/s"), {os.getuid()}, "0")
    yield made
    made.take_out()
    made.server.close()
    made.release()


def test_its_thread_serves_while_the_job_imports_ctypes(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as importing:
        importing.setitem(sys.modules, "ctypes", ModuleType("ctypes"))
        agent.server.stop()
        agent._run()
    assert agent.server._has_run
