"""Attaching again and again, to targets that notice what is done to them.

A 25th of what `make soak` has with ENDURANCE=10, a fifth of it where growth is counted; PROBE_FIGURES=FILE gets the
times, a JSON object a line.  Times are no test's business.
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
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delivering import held_at_once, interpreters, put
from until import states, until

from probe.errors import AttachError
from target import TARGETS, Start, Target, links, stat

pytestmark = pytest.mark.long

SIZE = float(os.environ.get("ENDURANCE", "0.4"))


def many(count: int) -> int:
    """As many as ENDURANCE makes of it.  Most targets compute all the time, so each attach costs the other tests one or
    two tenths of a second of the whole machine."""
    return round(count * SIZE)


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
        while not over.wait(0.003):
            with contextlib.suppress(OSError):
                stood.append(held_at_once(pid))

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
def test_under_stress_every_attach_succeeds_and_stops_one_thread_at_a_time(version: str, tmp_path: Path) -> None:
    target = python_target(version, "busy.py", tmp_path / "output")
    try:
        assert put(target).python.startswith(version)
        stops, hellos = [], []
        with watched(target.pid) as stood:
            for _ in range(many(50)):
                began = time.monotonic()
                stops.append(put(target).injected.stopped_ms)
                hellos.append((time.monotonic() - began) * 1e3)
        assert target.alive and "broken" not in target.output
        assert max(stood) <= 1
        tell(f"stress, Python {version}: stop", **spread(stops))
        tell(f"stress, Python {version}: whole", **spread(hellos))
    finally:
        target.end()


def left(pid: int, folder: Path) -> dict[str, int]:
    """The least of each in two seconds: a training has its own comings and goings."""
    looks = []
    for _ in range(20):
        looks.append(_left(pid, folder))
        time.sleep(0.1)
    return {name: min(look[name] for look in looks) for name in looks[0]}


def _left(pid: int, folder: Path) -> dict[str, int]:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "descriptors": len([link for link in links(pid) if not link.startswith("/dev/shm/torch_")]),  # batches
        "maps": len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
        "rss_kb": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "directories": len([name for name in os.listdir(folder) if name.startswith("probe-")]),
    }


def cycles(pid: int, count: int) -> list[float]:
    """Milliseconds until the hello of each."""
    command = [sys.executable, str(TARGETS.parent / "cycling.py"), str(pid), str(count)]
    return list(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def weights(job: Target) -> dict[int, str]:
    """By step."""
    lines = [line.split() for line in job.output.splitlines()]
    return {int(words[1]): words[2] for words in lines if words[0] == "at" and len(words) == 3}


def test_a_hundred_attaches_leave_nothing_in_a_training_with_workers(
    short_folder: Path, start: Start, tmp_path: Path
) -> None:
    """Attach and detach of the whole agent, each time."""
    pytest.importorskip("torch")
    env = {"TMPDIR": str(short_folder)}
    job = start("loading.py", str(tmp_path / "times"), "0.05", ready="at 100 ", env=env)
    cycles(job.pid, 1)  # what it leaves is left once
    before, rounds = left(job.pid, short_folder), max(50, many(50))
    hellos = cycles(job.pid, rounds)

    def grown_since() -> dict[str, int]:
        after = left(job.pid, short_folder)
        return {name: after[name] - before[name] for name in after}

    until(lambda: grown_since()["rss_kb"] < 5 * 1024, why=grown_since)  # the training's own comes and goes
    grown = grown_since()
    told = weights(job)
    job.end()
    assert max(grown["threads"], grown["descriptors"], grown["directories"]) <= 0
    assert grown["maps"] < 30
    last = max(told)
    alone = start("loading.py", str(tmp_path / "again"), ready=f"at {last} ")
    assert told == {step: digest for step, digest in weights(alone).items() if step <= last}
    tell("training with workers: until hello", **spread(hellos))
    tell("training with workers: grown after all of them", n=rounds, steps=last, **grown)


@pytest.mark.parametrize("where", ["sleep", "lock", "epoll", "pipe", "vfork", "native_spin"])
def test_a_stuck_process_can_be_attached_to(start: Start, where: str) -> None:
    target = start("waiting.py", where)
    times = [timed_put(target) for _ in range(many(5))]
    assert target.alive
    tell(f"stuck in {where}", **spread(times))


def test_a_rank_at_a_barrier_can_be_attached_to_and_passes_it_later(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = start("barrier.py", str(tmp_path / "go"), ranks=2, ready="")
    pid = int(job.wait_for("waits").partition("waits ")[2].split()[0])
    until(lambda: stat(pid)[0] == "S")  # it stands in the barrier
    times = [timed_put(pid) for _ in range(many(5))]
    assert job.alive and "passed" not in job.output
    (tmp_path / "go").touch()
    job.wait_for("passed", times=2)
    tell("stuck in a barrier of gloo", **spread(times))


def timed_put(target: Target | int) -> float:
    began = time.monotonic()
    put(target, timeout=10.0)  # as attach does
    return (time.monotonic() - began) * 1e3


@pytest.mark.parametrize("wait", ["nanosleep", "poll", "futex"])
def test_a_relative_wait_still_ends_on_time(start: Start, wait: str) -> None:
    target = start("relative.py", wait)
    target.wait_for("waited 50\n")
    quiet = target.output.count("off by")
    for _ in range(many(25)):
        put(target)
        time.sleep(0.02)
    assert "broken" not in target.output
    tell(
        f"relative {wait}: ended 10 ms off",
        n=many(25),
        before=quiet,
        during=target.output.count("off by") - quiet,
    )


def test_every_register_keeps_its_value(start: Start, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) on this machine")
    state = tmp_path / "state"
    state.write_bytes(bytes(24))
    target = start("registers.py", str(state))
    for _ in range(many(100)):
        assert put(target).injected.tid == target.pid
    _, rounds, differences = struct.unpack("<3q", state.read_bytes())
    assert rounds > 100 and differences == 0
    tell("registers that differ", n=many(100), rounds=rounds, differences=differences)


def test_an_attach_succeeds_or_says_why_not_where_malloc_and_the_loader_are_always_busy(start: Start) -> None:
    target = start("adversary.py")
    times, refused = [], 0
    for _ in range(many(30)):
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
def test_an_attach_that_is_interrupted_leaves_nothing(short_folder: Path, start: Start, script: str) -> None:
    target = start(script, env={"TMPDIR": str(short_folder)})
    moments = random.Random(2)
    for _ in range(many(20)):
        child = attaching(target)
        time.sleep(moments.uniform(0.003, 0.03))
        os.kill(child, signal.SIGINT)
        assert os.waitpid(child, 0)[1] == 0
        assert target.alive
    nobody_stands(target)
    assert "broken" not in target.output
    assert os.listdir(short_folder) == []
    tell(f"SIGINT, {script}: harmed", n=many(20), harmed=0)


@pytest.mark.parametrize("script", ["busy.py", "loop.py"])
def test_an_attach_that_is_killed_leaves_the_target_running(short_folder: Path, start: Start, script: str) -> None:
    if script == "loop.py":
        pytest.importorskip("torch")
    target = start(script, env={"TMPDIR": str(short_folder)})
    moments = random.Random(1)
    for _ in range(many(100)):
        child = attaching(target)
        time.sleep(moments.uniform(0.003, 0.03))
        family = [child, *map(int, Path(f"/proc/{child}/task/{child}/children").read_text().split())]
        for pid in family:  # the tracing process too, where there is one just now
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert target.alive
    nobody_stands(target)
    assert "broken" not in target.output
    assert put(target).reply["pid"] == target.pid
    for directory in short_folder.iterdir():
        os.utime(directory, (time.time() - 1000, time.time() - 1000))
    put(target)
    assert [name for name in os.listdir(short_folder) if not name.startswith("torchinductor_")] == []  # torch's own
    tell(f"SIGKILL, {script}: harmed", n=many(100), harmed=0)


def attaching(target: Target) -> int:
    """pid of a process that attaches again and again; it ends with 0 by SIGINT, with another status if it fails."""
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        os.read(reader, 1)  # a signal that comes while Python makes itself at home in a forked process is lost
        os.close(reader)
        return child
    status = 99
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = 0
        os.write(writer, b"!")
        while True:
            try:
                put(target)
            except AttachError as error:
                if error.code != "no-safe-point":
                    os._exit(98)
    os._exit(status)


def nobody_stands(target: Target) -> None:
    until(lambda: not set(states(target.pid)) & {"t", "T"})
