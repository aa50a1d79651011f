"""The agent's memory as others reach it, through /proc/<pid>/fd: they can read it, and do nothing else to it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest

from probe.agent.storage.memory import shared_memory
from probe.host import agent_memory

SIZE = 1 << 16


@pytest.fixture
def memory() -> Iterator[tuple[mmap.mmap, int]]:
    """The mapping, and a descriptor that another process could have."""
    mapped = shared_memory("probe-test", SIZE)
    mapped[:4] = b"mine"
    descriptor = os.open(agent_memory.descriptors(os.getpid())["test"], os.O_RDWR)
    yield mapped, descriptor
    os.close(descriptor)
    mapped.close()


def test_it_can_be_read(memory: tuple[mmap.mmap, int]) -> None:
    with mmap.mmap(memory[1], SIZE, mmap.MAP_SHARED, mmap.PROT_READ) as shared:
        assert shared[:4] == os.pread(memory[1], 4, 0) == b"mine"
        memory[0][:4] = b"new!"
        assert shared[:4] == b"new!"


@pytest.mark.parametrize("size", [0, 100, SIZE * 2])
def test_nobody_can_change_its_size_under_the_job(memory: tuple[mmap.mmap, int], size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(memory[1], size)
    memory[0][SIZE - 1] = 1  # with the file made shorter, this would end the process


def test_nobody_else_can_write_to_it(memory: tuple[mmap.mmap, int]) -> None:
    with pytest.raises(PermissionError):
        os.pwrite(memory[1], b"no", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(memory[1], SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    assert memory[0][:4] == b"mine"
