"""Stacks read out of the memory of other processes, of every CPython here, are those that Python itself tells."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from delivering import interpreters

from probe.profile.memory import FileMemory, Memory, VmMemory, memory_of
from probe.profile.sampler import Frame, Nodes, Sampler
from probe.profile.thread_stack import Sample

STACKS = Path(__file__).parents[2] / "targets" / "stacks.py"
VERSIONS = dict(interpreters())


@pytest.fixture(scope="module", params=sorted(VERSIONS))
def asleep(request: pytest.FixtureRequest) -> Iterator[tuple[int, dict[str, Any]]]:
    """The pid of a process of this version, and what it says about itself."""
    process = subprocess.Popen(
        [VERSIONS[request.param], "-B", str(STACKS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())


@pytest.mark.parametrize("way", ["call", "file"])
def test_the_stacks_of_sleeping_threads_are_those_that_python_tells(
    asleep: tuple[int, dict[str, Any]], way: str
) -> None:
    pid, told = asleep
    memory: Memory = VmMemory(pid) if way == "call" else FileMemory(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    sampler = Sampler(memory, told["layout"])
    for _ in range(3):  # the second time it needs one copy, the third time that copy is as before
        seen = {thread.ident: (sampler.frames(sample.stack), sample.holds_gil) for thread, sample in sampler.look()
                if sample.stack is not None}  # fmt: skip
        for ident, frames in told["stacks"].items():
            found, holds_gil = seen[int(ident)]
            assert found is not None and [[*frame] for frame in map(_told, found)] == frames
            assert holds_gil is False
        assert len(seen) == len(told["stacks"]) + 1  # the main thread


def _told(frame: Frame) -> list[Any]:
    return [frame.file, frame.function, frame.line]


def test_who_holds_the_gil_is_told(asleep: tuple[int, dict[str, Any]]) -> None:
    assert asleep[1]["layout"]["gil"] is not None


def test_memory_that_cannot_be_read_is_none_and_leaves_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    assert memory_of(os.getpid(), 8) is None  # nothing is mapped there
    assert os.listdir("/proc/self/fd") == before


def test_nodes_share_what_stacks_have_in_common() -> None:
    nodes = Nodes(5)
    outer, one, other = (Frame("a.py", name, 3) for name in ("outer", "one", "other"))
    assert [nodes.number(stack) for stack in ((one, outer), (other, outer), (one, outer), ())] == [6, 7, 6, -1]
    assert nodes.names == [("outer", "a.py"), ("one", "a.py"), ("other", "a.py")]
    nodes.learn(nodes.names, [11, 12, 13])
    words = memoryview(nodes.packed()).cast("q").tolist()
    assert words == [0, 11, 3, 5, 5, 12, 3, 6, 5, 13, 3, 7]
    assert nodes.packed() == b"" and nodes.number((one, outer)) == 6


def test_a_thread_state_that_was_freed_while_it_was_read_is_no_thread(
    asleep: tuple[int, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers would not fit into a row, and the profile would end."""
    freed, alive = (SimpleNamespace(ident=ident, native_id=1, sample=lambda: Sample(None)) for ident in (0xDD << 56, 7))
    freed.next, alive.next = 1, 0
    threads = iter((freed, alive))
    monkeypatch.setattr("probe.profile.sampler.ThreadStack", lambda *_: next(threads))
    sampler = Sampler(VmMemory(asleep[0]), asleep[1]["layout"])
    assert [thread.ident for thread, _ in sampler.look()] == [7]
