"""The memory of the process as the kernel has it, and that of devices as a played allocator tells it."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe import streams
from probe.agent.memory.blocks import allocated_bytes
from probe.agent.samplers import memory
from probe.agent.samplers.memory import Memory
from probe.agent.torch_state import leave_devices_alone


class Samples:
    """Takes rows as a stream does."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []

    def append(self, *row: int) -> None:
        self.rows.append(row)  # type: ignore[arg-type]

    def of(self, source: int) -> dict[int, int]:
        return {counter: value for _, each, counter, value in self.rows if each == source}


@pytest.fixture
def samples() -> Any:
    return Samples()


def test_what_is_resident_is_what_the_kernel_says(samples: Any) -> None:
    Memory(samples).sample()
    told = samples.of(streams.MEMORY)
    rollup = Path("/proc/self/smaps_rollup").read_text().split()
    assert told[streams.HOST_RSS] == pytest.approx(int(rollup[rollup.index("Rss:") + 1]) << 10, rel=0.05)
    assert 0 < told[streams.HOST_PSS] <= 1.05 * told[streams.HOST_RSS] and told[streams.HOST_SHARED] > 0
    assert streams.HOST_PINNED not in told and len({row[0] for row in samples.rows}) == 1


def test_the_proportional_share_is_read_again_only_after_a_thousand_times_as_long(samples: Any) -> None:
    sampler = Memory(samples)
    sampler.sample()
    sampler._pss_due_ns = 1 << 62
    sampler.sample()
    assert [row[2] for row in samples.rows].count(streams.HOST_PSS) == 1
    assert [row[2] for row in samples.rows].count(streams.HOST_RSS) == 2


def test_of_a_large_process_the_kernel_is_not_asked_to_go_through_all_pages(
    samples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.agent.samplers.memory._MOST_RESIDENT", 1 << 20)
    sampler = Memory(samples)
    sampler.sample()
    assert streams.HOST_PSS not in samples.of(streams.MEMORY) and streams.HOST_RSS in samples.of(streams.MEMORY)
    assert sampler.state.startswith("on, without /proc/self/smaps_rollup: ")


@pytest.mark.parametrize("lack", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_job_at_its_limit_of_descriptors_has_its_proportional_share_again_later(
    samples: Any, monkeypatch: pytest.MonkeyPatch, lack: int
) -> None:
    def full(path: str, flags: int) -> int:
        if path == "/proc/self/smaps_rollup":
            raise OSError(lack, os.strerror(lack))
        return opened(path, flags)

    opened, sampler = os.open, Memory(samples)
    monkeypatch.setattr(memory.os, "open", full)
    sampler.sample()
    assert samples.of(streams.MEMORY).keys() == {streams.HOST_RSS, streams.HOST_SHARED} and sampler.state == "on"
    monkeypatch.undo()
    sampler.sample()
    assert streams.HOST_PSS in samples.of(streams.MEMORY)


def play_devices(monkeypatch: pytest.MonkeyPatch, hip: str | None = None, why_untold: str = "") -> None:
    """A torch that uses three of them; why_untold: what its allocator raises."""

    def stats(index: int) -> dict[str, Any]:
        if why_untold:
            raise RuntimeError(why_untold)
        of = {"allocated_bytes": (5, 9), "reserved_bytes": (20, 20), "inactive_split_bytes": (3, 4)}
        return {name: {"all": {"current": at[0] * index, "peak": at[1] * index}} for name, at in of.items()}

    core = SimpleNamespace(_cuda_memoryStats=stats, _cuda_hostMemoryStats=lambda: {"allocated_bytes": {"current": 7}})
    cuda = SimpleNamespace(device_count=lambda: 3, is_initialized=lambda: True)
    played = SimpleNamespace(_C=core, cuda=cuda, version=SimpleNamespace(hip=hip))
    monkeypatch.setitem(sys.modules, "torch", played)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)  # type: ignore[arg-type]


@pytest.mark.parametrize(("left_alone", "hip"), [(True, None), (False, "6.2")])
def test_devices_that_are_left_alone_are_not_asked(
    samples: Any, monkeypatch: pytest.MonkeyPatch, left_alone: bool, hip: str | None
) -> None:
    play_devices(monkeypatch, hip)
    leave_devices_alone(left_alone)
    try:
        Memory(samples).sample()
    finally:
        leave_devices_alone(False)
    assert {row[1] for row in samples.rows} == {streams.MEMORY}
    assert streams.HOST_PINNED not in samples.of(streams.MEMORY)


def test_each_device_that_has_memory_has_what_its_allocator_tells(
    samples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_devices(monkeypatch)
    Memory(samples).sample()
    assert samples.of(streams.MEMORY)[streams.HOST_PINNED] == 7
    assert samples.of(streams.MEMORY - 3) == {
        streams.DEVICE_ALLOCATED: 10, streams.DEVICE_RESERVED: 40, streams.DEVICE_INACTIVE: 6, streams.DEVICE_PEAK: 18,
    }  # fmt: skip
    assert samples.of(streams.MEMORY - 2) and not samples.of(streams.MEMORY - 1)


OF_ITS_OWN = "CUDAPluggableAllocator does not yet support getDeviceStats.\nException raised from somewhere"


def test_an_allocator_of_the_jobs_own_does_not_keep_the_host_from_being_sampled(
    samples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_devices(monkeypatch, why_untold=OF_ITS_OWN)
    sampler = Memory(samples)
    sampler.sample()
    told = samples.of(streams.MEMORY)
    assert {row[1] for row in samples.rows} == {streams.MEMORY}
    assert told[streams.HOST_RSS] > 0 and told[streams.HOST_PINNED] == 7
    assert sampler.state == "on, without devices: CUDAPluggableAllocator does not yet support getDeviceStats."


def test_what_devices_have_given_out_is_told_where_their_allocator_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    play_devices(monkeypatch)
    assert allocated_bytes() == {"cuda:1": 5, "cuda:2": 10}
    play_devices(monkeypatch, why_untold=OF_ITS_OWN)
    assert allocated_bytes() == {}
