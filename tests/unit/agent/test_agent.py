"""The agent as a whole, in the process of the tests: it starts wherever the job stands, and leaves nothing."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from probe.agent import agent as agent_module
from probe.agent import facts, main, opened
from probe.agent.agent import Agent
from probe.agent.opened import Opened
from probe.host import agent_memory
from probe.streams import LOG_MODULE

MINE = {os.geteuid()}


@pytest.fixture(autouse=True)
def folder(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the agent has its socket."""
    monkeypatch.setenv("TMPDIR", str(short_folder))
    return short_folder


@pytest.fixture
def agent() -> Iterator[Agent]:
    """Not started."""
    made = Agent(Opened(MINE, ExitStack()), "0")
    yield made
    made.take_out()
    made.server.connections.listener.remove()
    made.server.close()
    made.release()


def links() -> set[str]:
    """What the descriptors of this process are open on."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        if os.path.lexists(f"/proc/self/fd/{number}"):  # not the listing's own
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_its_thread_serves_while_the_job_imports_ctypes(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as importing:
        importing.setitem(sys.modules, "ctypes", ModuleType("ctypes"))
        agent.server.stop()
        agent._run()
    assert agent.server._has_run


def test_a_rank_whose_group_is_destroyed_keeps_its_number(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(rank: int, is_up: bool) -> tuple[Any, ...]:
        group = SimpleNamespace(get_rank=lambda: rank, get_world_size=lambda: 4)
        monkeypatch.setitem(sys.modules, "torch.distributed", group)
        monkeypatch.setattr(facts, "is_distributed", lambda: is_up)
        found = agent.facts()
        return found["rank"], found["world_size"], found["distributed"]

    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    assert told(-1, False) == (None, None, False)
    assert [told(3, True), told(-1, False)] == [(3, 4, True), (3, 4, False)]
    assert [told(2, True), told(-1, False)] == [(2, 4, True), (2, 4, False)], "by the last group"
    monkeypatch.setenv("RANK", "1")
    assert told(-1, False) == (1, 4, False)


@pytest.mark.parametrize("text", ["x", "\\", '"', "\N{LATIN SMALL LETTER U WITH DIAERESIS}"])
def test_its_facts_are_told_however_long_the_reason_why_there_are_no_taps(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def unknown(*_: Any) -> None:
        raise ValueError(text * 100_000)

    monkeypatch.setattr(agent_module, "torch_is_imported", lambda: True)
    monkeypatch.setattr(agent_module, "TorchTaps", unknown)
    agent._look_for_torch()
    agent.header.write(agent.facts())
    told = agent_memory.facts(os.getpid())
    assert told is not None and told.taps["forward"].startswith("off: not this torch: ValueError(")


@pytest.mark.parametrize(
    ("module", "part"), [(opened, "Server"), (opened, "Rss"), (opened, "Log"), (agent_module, "Traces")]
)
def test_an_agent_that_cannot_be_made_leaves_no_descriptor(
    module: ModuleType, part: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(module, part, short)
    before = links()
    with pytest.raises(OSError, match="Too many open files"):
        main._new_agent({"uid": os.geteuid(), "version": "0"})
    assert links() == before and not list(folder.iterdir())


def test_a_child_forked_while_the_agent_is_made_keeps_nothing_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, before, inherited = opened.Log, links(), set[str]()

    def forking() -> Any:
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.write(writer, "\n".join(links() - before).encode())
            os._exit(0)
        os.close(writer)
        with open(reader) as file:
            inherited.update(file.read().split("\n"))
        assert os.waitpid(child, 0)[1] == 0
        return log()

    monkeypatch.setattr(opened, "Log", forking)
    with ExitStack() as made:
        Opened(MINE, made)
        assert all(link.startswith("pipe:") for link in inherited)
        assert len(list(folder.glob("*/*.sock"))) == 1  # it is not the child's
    assert not list(folder.iterdir())


def test_a_full_log_is_among_its_troubles(agent: Agent) -> None:
    assert not agent.facts()["trouble"]
    agent.log.put(LOG_MODULE, 1, {"name": "x" * (64 << 20)})
    agent.log.write()
    assert agent.facts()["trouble"] == agent.log.trouble != ""
    agent.boundary.trouble = "boundary: it broke"  # a fault of ours comes first
    assert agent.facts()["trouble"] == "boundary: it broke"
