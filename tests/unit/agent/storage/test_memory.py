"""The agent's memory as others reach it, through /proc/<pid>/fd: they can read it, and do nothing else to it."""

from __future__ import annotations

import errno
import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from probe.agent.storage import memory as memory_module
from probe.agent.storage.log import Log
from probe.agent.storage.memfd import memfd_create
from probe.agent.storage.memory import NoRoom, shared_memory
from probe.agent.storage.rows import Stream
from probe.host import agent_memory
from probe.streams import LOG_BYTES, LOG_STRING, RETENTION_BYTES

SIZE = 1 << 16


@pytest.fixture(params=["usual", "old C library"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[mmap.mmap, int]]:
    """The mapping, and a descriptor that another process could have; also of a Python without the call, as conda's."""
    if request.param != "usual":
        lack(monkeypatch)
    mapped = shared_memory("probe-test", SIZE)
    mapped[:4] = b"mine"
    descriptor = os.open(agent_memory.descriptors(os.getpid())["test"], os.O_RDWR)
    yield mapped, descriptor
    os.close(descriptor)
    mapped.close()


def lack(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING"):
        monkeypatch.delattr(os, name)


def test_without_the_call_in_python_a_failure_has_the_kernels_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lack(monkeypatch)
    with pytest.raises(OSError, match="Invalid argument") as raised:
        shared_memory("probe-" + 250 * "x", SIZE)  # the kernel takes 249 bytes
    assert raised.value.errno == errno.EINVAL


def test_without_the_call_in_python_the_memory_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    lack(monkeypatch)
    made = memfd_create("probe-test")
    assert not os.get_inheritable(made)
    os.close(made)


def test_without_the_call_in_python_nothing_is_left_to_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    lack(monkeypatch)
    gc.collect()
    os.close(memfd_create("probe-test"))
    assert gc.collect() == 0


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


@pytest.fixture
def strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that does not overcommit memory, where a write to a new page may be SIGBUS."""
    (tmp_path / "overcommit_memory").write_text("2\n")
    monkeypatch.setattr(memory_module, "_OVERCOMMIT", str(tmp_path / "overcommit_memory"))


def resident(name: str) -> int:
    """Bytes of this memory that the kernel has granted."""
    return 512 * os.stat(agent_memory.descriptors(os.getpid())[name]).st_blocks


def test_without_overcommitment_all_pages_are_there_before_the_first_row(strict: None) -> None:
    stream, log = Stream("reserved", ("a", "seq")), Log()
    assert resident("reserved") == len(stream.buffer) < RETENTION_BYTES // 4
    assert resident("log") == len(log.buffer) == LOG_BYTES // 8
    log.put(LOG_STRING, 1, "x" * len(log.buffer))
    log.write()
    assert log.dropped == 1
    stream.close()
    log.close()


def test_pages_that_are_denied_are_an_error_with_its_code(strict: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", denied)
    with pytest.raises(NoRoom, match="1 MB for rows: No space left on device") as raised:
        shared_memory("probe-denied", 1 << 20)
    assert raised.value.probe_code == "no-memory"


def test_elsewhere_pages_cost_memory_once_they_are_written() -> None:
    stream = Stream("usual", ("a", "seq"))
    assert resident("usual") == 0 and len(stream.buffer) > RETENTION_BYTES // 2
    stream.append(1)
    assert 0 < resident("usual") <= 1 << 20
    stream.close()


def test_a_number_that_the_job_uses_again_is_not_closed(tmp_path: Path) -> None:
    mapped = shared_memory("probe-test", SIZE)
    number = int(agent_memory.descriptors(os.getpid())["test"].rpartition("/")[2])
    with (tmp_path / "of the job").open("wb") as file:
        os.dup2(file.fileno(), number)
        mapped.close()
        assert os.path.samestat(os.fstat(number), os.fstat(file.fileno()))
        del mapped
        os.close(number)
    again = shared_memory("probe-test", SIZE)
    again.close()
    assert "test" not in agent_memory.descriptors(os.getpid())


def test_where_addresses_are_limited_an_eighth_of_them_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits = tmp_path / "limits"
    monkeypatch.setattr(memory_module, "_LIMITS", str(limits))
    for soft, size in (("8589934592", LOG_BYTES // 8), ("unlimited", LOG_BYTES)):
        limits.write_text(f"Limit  Soft Limit  Hard Limit  Units\nMax address space  {soft}  unlimited  bytes\n")
        log = Log()
        assert len(log.buffer) == size
        log.close()
