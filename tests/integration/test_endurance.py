"""Attaching again and again, to targets that notice what is done to them.

Part of `make soak`: ENDURANCE=10 is the whole of it, ENDURANCE=1 a tenth; PROBE_FIGURES=FILE gets the times, a JSON
object a line.  Times are no test's business.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delivering import interpreters, put, states

from probe import connect
from probe.attach import attach
from probe.attach.rendezvous import PREFIX
from probe.errors import AttachError
from target import TARGETS, Start, Target

SIZE = int(os.environ.get("ENDURANCE", "0"))
pytestmark = [
    pytest.mark.alone,  # what it measures goes into the figures
    pytest.mark.skipif(SIZE == 0, reason="a part of make soak: ENDURANCE=1 for a tenth of it"),
]


def tell(name: str, **figures: Any) -> None:
    if path := os.environ.get("PROBE_FIGURES"):
        with open(path, "a") as file:
            file.write(json.dumps({"name": name, **figures}) + "\n")


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "n": len(ordered), "median_ms": round(statistics.median(ordered), 2),
        "p95_ms": round(ordered[int(0.95 * (len(ordered) - 1))], 2), "most_ms": round(ordered[-1], 2),
    }  # fmt: skip


@contextlib.contextmanager
def watched(pid: int) -> Iterator[list[int]]:
    """How many threads stood at once, each time that it was looked."""
    stood, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.0005):
            with contextlib.suppress(OSError):
                stood.append(states(pid).count("t"))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield stood
    finally:
        over.set()
        watcher.join()


def python_target(version: str, script: str, output: Path) -> Target:
    path = dict(interpreters()).get(version)
    if path is None:
        pytest.skip(f"no Python {version} on this machine")
    target = Target((path, "-S", str(TARGETS / script)), output, {})
    target.wait_for("ready")
    return target


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_under_stress_every_attach_succeeds_and_one_thread_stands_at_a_time(version: str, tmp_path: Path) -> None:
    target = python_target(version, "busy.py", tmp_path / "output")
    try:
        put(target)
        stops, hellos = [], []
        with watched(target.pid) as stood:
            for _ in range(50 * SIZE):
                began = time.monotonic()
                stops.append(put(target).planted.stopped_ms)
                hellos.append((time.monotonic() - began) * 1e3)
        assert target.alive and "broken" not in target.output
        assert max(stood) <= 1
        tell(f"stress, Python {version}: stop", **spread(stops))
        tell(f"stress, Python {version}: whole", **spread(hellos))
    finally:
        target.end()


def left(pid: int) -> dict[str, int]:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "maps": len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
        "rss_kb": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "directories": len([name for name in os.listdir("/tmp") if name.startswith((PREFIX, "probe-"))]),
    }


def test_a_training_with_workers_keeps_nothing_of_them(start: Start, tmp_path: Path) -> None:
    """Attach and detach of the whole agent, each time."""
    pytest.importorskip("torch")
    job = start("phased.py", str(tmp_path / "times"), "--workers", "2")
    times: list[float] = []

    def cycle() -> None:
        times.append(attach(job.pid).milliseconds)
        with connect(str(job.pid)) as connection:
            assert connection.detach() == []

    for _ in range(5):  # what stays of the first: modules, arenas
        cycle()
    before = left(job.pid)
    for _ in range(20 * SIZE):
        cycle()
    time.sleep(1)
    after = left(job.pid)
    grown = {name: after[name] - before[name] for name in after}
    assert job.alive
    assert max(grown["threads"], grown["descriptors"], grown["directories"]) <= 0
    assert grown["maps"] < 30 and grown["rss_kb"] < 5 * 1024
    tell("training with workers: attach", **spread(times))
    tell("training with workers: grown after all of them", n=20 * SIZE, **grown)


@pytest.mark.parametrize("where", ["sleep", "lock", "epoll", "pipe", "vfork", "native_spin"])
def test_a_process_that_is_stuck_is_reached(start: Start, where: str) -> None:
    target = start("waiting.py", where)
    times = []
    for _ in range(2 * SIZE):
        began = time.monotonic()
        put(target)
        times.append((time.monotonic() - began) * 1e3)
    assert target.alive
    tell(f"stuck in {where}", **spread(times))


@pytest.mark.parametrize("wait", ["nanosleep", "poll", "futex"])
def test_a_relative_wait_ends_when_it_should_have(start: Start, wait: str) -> None:
    target = start("relative.py", wait)
    target.wait_for("waited 50\n")
    quiet = target.output.count("off by")
    for _ in range(10 * SIZE):
        put(target)
        time.sleep(0.02)
    assert "broken" not in target.output
    tell(f"relative {wait}: ended 10 ms off", n=10 * SIZE, before=quiet, during=target.output.count("off by") - quiet)


def test_no_register_is_other_than_before(start: Start, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) on this machine")
    state = tmp_path / "state"
    state.write_bytes(bytes(24))
    target = start("registers.py", str(state))
    for _ in range(100 * SIZE):
        assert put(target).planted.tid == target.pid
    _, rounds, differences = struct.unpack("<3q", state.read_bytes())
    assert rounds > 100 and differences == 0
    tell("registers that differ", n=100 * SIZE, rounds=rounds, differences=differences)


def test_where_malloc_and_the_loader_are_always_held_it_succeeds_or_says_why_not(start: Start) -> None:
    target = start("adversary.py")
    times, refused = [], 0
    for _ in range(30 * SIZE):
        began = time.monotonic()
        try:
            put(target)
        except AttachError as error:
            assert error.code == "no-safe-point"
            refused += 1
        times.append((time.monotonic() - began) * 1e3)
    assert target.alive
    tell("adversary of malloc and loader", refused=refused, **spread(times))


@pytest.mark.parametrize("script", ["busy.py", "adversary.py"])
def test_an_attach_that_is_interrupted_leaves_nothing(start: Start, script: str) -> None:
    target = start(script)
    moments = random.Random(2)
    for _ in range(20 * SIZE):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with contextlib.suppress(BaseException):
                while True:
                    put(target)
            os._exit(0)
        time.sleep(moments.uniform(0.003, 0.03))
        while os.waitpid(child, os.WNOHANG) == (0, 0):  # one that falls into a finalizer is lost
            os.kill(child, signal.SIGINT)
            time.sleep(0.05)
        assert target.alive
    end = time.monotonic() + 3
    while set(states(target.pid)) & {"t", "T"}:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert "broken" not in target.output
    assert [name for name in os.listdir("/tmp") if name.startswith(PREFIX)] == []
    tell(f"SIGINT, {script}: harmed", n=20 * SIZE, harmed=0)
