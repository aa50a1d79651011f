"""The samplers of the agent: what they write, how often, what they cost, and that nothing they do gets out."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import descriptors

from probe.agent.samplers import process, sampler_loop
from probe.agent.samplers.memory import Memory
from probe.agent.samplers.process import Process
from probe.agent.samplers.sampler import Absent
from probe.agent.samplers.sampler_loop import SamplerLoop
from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.streams import (
    CORE_WAIT_NS,
    CPU_NS,
    GIL_WAIT_NS,
    HOST_IDLE_TICKS,
    HOST_MEMORY_AVAILABLE_KB,
    HOST_MEMORY_KB,
    HOST_TICKS,
    INVOLUNTARY_SWITCHES,
    MAJOR_FAULTS,
    MEMORY,
    READ_BYTES,
    RSS_BYTES,
    SAMPLES,
    STREAMS,
    THREADS,
    VOLUNTARY_SWITCHES,
    WRITTEN_BYTES,
)

OF_THE_PROCESS = {
    CORE_WAIT_NS, CPU_NS, GIL_WAIT_NS, HOST_IDLE_TICKS, HOST_MEMORY_AVAILABLE_KB, HOST_MEMORY_KB, HOST_TICKS,
    INVOLUNTARY_SWITCHES, MAJOR_FAULTS, READ_BYTES, RSS_BYTES, THREADS, VOLUNTARY_SWITCHES, WRITTEN_BYTES,
}  # fmt: skip


@pytest.fixture
def samples() -> Iterator[Stream]:
    made = Stream("test", STREAMS[SAMPLES], retention_bytes=1)
    yield made
    made.close()


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.close()


def rows(stream: Stream) -> list[tuple[int, ...]]:
    found = []
    for _, view in stream.read(1, stream.position(), 4096):
        found += list(struct.iter_unpack(f"<{len(stream.slots)}q", view))
        view.release()
    return found


def readings(stream: Stream) -> dict[int, int]:
    """The last value of each counter."""
    return {counter: value for _, _, counter, value, _ in rows(stream)}


class Clock:
    """Seconds as a test tells them."""

    def __init__(self) -> None:
        self.seconds = 100.25

    def __call__(self) -> int:
        return int(self.seconds * 1e9)


class Counting:
    """A sampler that counts its samples."""

    def __init__(self, fail_at: int = 0, error: type[Exception] = ValueError) -> None:
        self.taken, self.closed, self.forgotten, self.state = 0, 0, 0, "on"
        self._fail_at, self._error = fail_at, error

    def sample(self) -> None:
        self.taken += 1
        if self.taken == self._fail_at:
            raise self._error("it broke")

    def close(self) -> None:
        self.closed += 1
        raise OSError("it does not close")

    def forget(self) -> None:
        self.forgotten += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sampler_loop, "perf_counter_ns", made)
    return made


@pytest.fixture
def sampling(samples: Stream, log: Log) -> Callable[..., SamplerLoop]:
    def make(**samplers: Any) -> SamplerLoop:
        registry = {name: (lambda *_, made=made: made) for name, made in samplers.items()}
        return SamplerLoop(samples, log, None, registry)

    return make


def test_each_whole_second_is_sampled_once_however_often_it_ticks(sampling: Callable[..., SamplerLoop], clock: Clock):
    counting = Counting()
    one = sampling(process=counting)
    taken = []
    for step in range(400):  # four seconds from 100.25 on
        clock.seconds = 100.25 + step / 100
        one.tick()
        taken.append(counting.taken)
    assert taken[0] == 1  # at once
    assert [100.25 + step / 100 for step in range(1, 400) if taken[step] > taken[step - 1]] == [101, 102, 103, 104]


def test_a_second_that_begins_right_after_a_late_sample_is_left_out(sampling: Callable[..., SamplerLoop], clock: Clock):
    counting = Counting()
    one = sampling(process=counting)
    taken = {}
    for clock.seconds in (100.25, 104.9, 105.0, 105.1, 106.0):
        one.tick()
        taken[clock.seconds] = counting.taken
    assert list(taken.values()) == [1, 2, 2, 2, 3]


def test_it_asks_to_be_called_when_the_next_second_has_begun(sampling: Callable[..., SamplerLoop], clock: Clock):
    one = sampling(process=Counting())
    assert one.tick() == pytest.approx(0.75, abs=0.002)
    assert one.tick() > 0.75


def test_a_sampler_that_raises_is_off_and_named_and_the_others_go_on(
    sampling: Callable[..., SamplerLoop], clock: Clock
):
    broken, whole = Counting(fail_at=2), Counting()
    one = sampling(gpu=broken, process=whole)
    for clock.seconds in (101, 102, 103, 104):
        one.tick()
    assert (broken.taken, broken.closed, whole.taken, whole.closed) == (2, 1, 4, 0)
    assert one.states() == {"gpu": "off: ValueError('it broke')", "process": "on"}


def test_a_sampler_of_a_job_at_its_limit_of_descriptors_leaves_out_that_second(
    samples: Stream, log: Log, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    def full(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    def lines() -> int:
        return sum(source == MEMORY for _, source, *_ in rows(samples))

    one, opened = SamplerLoop(samples, log, None, {"memory": Memory}), os.open
    one.tick()
    before = lines()
    monkeypatch.setattr(process.os, "open", full)
    clock.seconds = 101
    one.tick()
    assert one.states() == {"memory": "on"} and lines() == before
    monkeypatch.setattr(process.os, "open", opened)
    clock.seconds = 102
    one.tick()
    assert one.states() == {"memory": "on"} and lines() > before


def test_a_sampler_with_nothing_to_sample_says_why(sampling: Callable[..., SamplerLoop], clock: Clock):
    one = sampling(gpu=Counting(fail_at=1, error=Absent))
    assert one.states() == {"gpu": "waiting for its first second"}
    one.tick()
    assert one.states() == {"gpu": "off: it broke"}


def test_in_a_forked_child_samplers_are_forgotten_and_not_closed(sampling: Callable[..., SamplerLoop], clock: Clock):
    counting = Counting()
    one = sampling(gpu=counting)
    one.tick()
    one.forget()
    assert (counting.forgotten, counting.closed) == (1, 0)


def test_on_a_machine_without_a_driver_the_devices_are_off_for_that_reason(samples: Stream, log: Log):
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is one")
    one = SamplerLoop(samples, log, None)
    one.tick()
    assert one.states()["process"] == "on" and one.states()["gpu"] == "off: no NVML library"
    one.close()


@pytest.fixture
def sampler(samples: Stream) -> Iterator[Process]:
    made = Process(samples)
    yield made
    made.close()


def test_every_counter_of_the_process_is_read_and_all_share_one_time(sampler: Process, samples: Stream):
    sampler.sample()
    assert readings(samples).keys() == OF_THE_PROCESS
    assert len({(time, source) for time, source, *_ in rows(samples)}) == 1


def test_the_counters_are_those_of_the_kernel(sampler: Process, samples: Stream):
    usage, ticks = resource.getrusage(resource.RUSAGE_SELF), Path("/proc/stat").read_text().split()
    sampler.sample()
    found = readings(samples)
    assert found[CPU_NS] == pytest.approx((usage.ru_utime + usage.ru_stime) * 1e9, rel=0.05)
    on_core, waited = map(int, Path("/proc/self/schedstat").read_text().split()[:2])
    assert 0 < found[CORE_WAIT_NS] <= waited < on_core + found[CORE_WAIT_NS]
    assert found[VOLUNTARY_SWITCHES] >= usage.ru_nvcsw > 0
    assert found[THREADS] == len(os.listdir("/proc/self/task"))
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert found[RSS_BYTES] == pytest.approx(int(status["VmRSS"].split()[0]) * 1024, rel=0.05)
    assert found[HOST_TICKS] == pytest.approx(sum(map(int, ticks[1:9])), abs=1000)
    assert found[HOST_IDLE_TICKS] == pytest.approx(int(ticks[4]) + int(ticks[5]), abs=1000)
    assert found[HOST_MEMORY_KB] * 1024 == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < found[HOST_MEMORY_AVAILABLE_KB] < found[HOST_MEMORY_KB]


def test_no_file_stays_open(samples: Stream):
    before = descriptors()
    sampler = Process(samples)
    sampler.sample()
    assert descriptors() == before
    sampler.close()


def test_a_job_at_its_limit_of_descriptors_has_its_counters_again_later(
    samples: Stream, monkeypatch: pytest.MonkeyPatch
):
    def full(path: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    sampler = Process(samples)
    monkeypatch.setattr(process.os, "open", full)
    sampler.sample()
    assert not readings(samples).keys() & {THREADS, READ_BYTES, HOST_MEMORY_KB} and sampler.state == "on"
    monkeypatch.undo()
    sampler.sample()
    assert readings(samples).keys() == OF_THE_PROCESS
    sampler.close()


def test_a_file_that_cannot_be_opened_leaves_its_counters_out(samples: Stream, monkeypatch: pytest.MonkeyPatch):
    def denied(path: str, flags: int) -> int:
        if path == "/proc/self/io":
            raise PermissionError(13, "Permission denied")
        return opened(path, flags)

    opened = os.open
    monkeypatch.setattr(process.os, "open", denied)
    sampler = Process(samples)
    monkeypatch.undo()
    sampler.sample()
    assert readings(samples).keys() == OF_THE_PROCESS - {READ_BYTES, WRITTEN_BYTES}
    assert sampler.state == "on, without /proc/self/io: Permission denied"
    sampler.close()


def test_a_file_that_cannot_be_parsed_is_not_read_again(samples: Stream, monkeypatch: pytest.MonkeyPatch):
    before = descriptors()
    sampler = Process(samples)
    read = process.FILES["/proc/meminfo"]
    monkeypatch.setitem(process.FILES, "/proc/meminfo", lambda text: read(b"MemTotal: some\n"))
    sampler.sample()
    monkeypatch.undo()
    assert readings(samples).keys() == OF_THE_PROCESS - {HOST_MEMORY_KB, HOST_MEMORY_AVAILABLE_KB}
    assert sampler.state.startswith("on, without /proc/meminfo: ValueError")
    assert descriptors() == before
    sampler.sample()
    sampler.close()


def test_a_process_name_with_parentheses_is_parsed():
    text = b"42 (a) S 1) R " + b" ".join(str(field).encode() for field in range(4, 53))
    assert dict(process.FILES["/proc/self/stat"](text)) == {THREADS: 20, RSS_BYTES: 24 * os.sysconf("SC_PAGE_SIZE")}


@pytest.fixture
def busy_gil() -> Iterator[None]:
    """A thread that computes in Python without a pause."""
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(number for number in range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    yield
    stop.set()
    thread.join()


def waits(sampler: Process, samples: Stream, count: int) -> list[int]:
    found = []
    for _ in range(count):
        time.sleep(0.01)
        sampler.sample()
        found.append(readings(samples)[GIL_WAIT_NS])
    return sorted(found)


def test_there_is_no_gil_wait_if_no_other_thread_runs_python(sampler: Process, samples: Stream):
    found = waits(sampler, samples, 30)
    assert found[len(found) // 2] == 0


def test_a_thread_that_computes_makes_others_wait_a_switch_interval(sampler: Process, samples: Stream, busy_gil: None):
    found = waits(sampler, samples, 30)
    # a core that is taken away from the thread that computes makes it longer
    assert 0.5 <= found[len(found) // 2] / 1e9 / sys.getswitchinterval() < 10, found


def test_a_tick_costs_less_than_a_thousandth_of_a_core(samples: Stream, log: Log, monkeypatch: pytest.MonkeyPatch):
    second = itertools.count(1)
    monkeypatch.setattr(sampler_loop, "perf_counter_ns", lambda: next(second) * 10**9)
    one = SamplerLoop(samples, log, None)
    one.tick()
    costs = []
    for _ in range(40):
        time.sleep(0.02)  # so that caches are as cold as in a job
        before = time.thread_time_ns()
        one.tick()
        costs.append(time.thread_time_ns() - before)
    one.close()
    assert sorted(costs)[len(costs) // 2] < 1_000_000, sorted(costs)
