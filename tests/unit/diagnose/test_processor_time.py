"""What a thread does each time that it wakes, by what the kernel counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from until import until

from probe.diagnose.hang.evidence import BUSY, RankEvidence
from probe.diagnose.hang.processor_time import simplest_poll_s, work
from probe.host.processor_use import Load, Used, loads, used

NAPS = {
    "works": "end = time.thread_time() + 0.004\n while time.thread_time() < end: pass",
    "polls": "os.path.exists('/nowhere')",
}


@pytest.mark.parametrize("kind", NAPS)
def test_what_works_between_naps_is_told_from_what_polls(kind: str) -> None:
    code = f"import os, time\nprint('ready', flush=True)\nwhile True:\n time.sleep(0.02)\n {NAPS[kind]}\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            before, start = used(process.pid, None), time.monotonic()
            time.sleep(2)
            running, each_s = work(before, used(process.pid, None), time.monotonic() - start)
        finally:
            process.kill()
    assert running is not None and each_s is not None
    assert each_s >= 0.003 if kind == "works" else each_s < 0.002
    assert 0 < running < 0.9 if kind == "works" else running < 0.1
    assert 2 * simplest_poll_s() < 0.003 if kind == "works" else each_s > 0  # counted to less than a tick


def test_of_a_process_that_has_ended_and_of_another_thread_nothing_is_known() -> None:
    assert used(2**22 + 1, None) is None
    assert work(None, Used(1, 1.0, 1), 1.0) == (None, None) == work(Used(1, 1.0, 1), Used(2, 2.0, 2), 1.0)
    assert work(Used(1, 1.0, None), Used(1, 1.5, 9), 1.0) == (0.5, None)


@pytest.fixture
def crowd() -> Iterator[list[int]]:
    """Six processes on one core, each of which would use all of it."""
    (core, *_), words = sorted(os.sched_getaffinity(0)), [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        made = [stack.enter_context(subprocess.Popen(words)) for _ in range(6)]
        for each in made:
            stack.callback(each.kill)
            os.sched_setaffinity(each.pid, [core])
        yield [each.pid for each in made]


def test_a_thread_that_is_kept_from_its_core_computes(crowd: list[int]) -> None:
    before = loads(dict.fromkeys(crowd))
    time.sleep(3)
    told = {pid: Load.of(load.told(), load.at) for pid, load in loads(dict.fromkeys(crowd)).items()}
    seen = []
    for pid, after in told.items():
        look_s = after.at - before[pid].at
        running, _ = work(before[pid].used, after.used, look_s)
        core_wait = (after.waited_s - before[pid].waited_s) / look_s
        seen.append(RankEvidence(0, pid, "answers", running=running, core_wait=core_wait))
    assert min(each.running for each in seen if each.running is not None) < BUSY
    assert all(each.is_busy for each in seen), seen
    assert not any(replace(each, running=0.0).is_busy or replace(each, running=None).is_busy for each in seen)


@pytest.mark.parametrize(
    ("call", "sleeps"),
    [
        ("time.sleep(100)", True),
        ("select.select([], [], [], 100)", True),  # what time.sleep() calls in Python 3.10
        ("input()", True),
        ("threading.Event().wait(100)", False),
        ("select.select([3], [], [], 100)", False),
        ("os.read(3, 1)", False),
        ("subprocess.run(['sleep', '100'])", False),
        ("sum(iter(int, 1))", False),
    ],
)
def test_who_waits_for_time_or_input_alone_sleeps(call: str, sleeps: bool) -> None:
    names = "os, select, subprocess, threading, time"
    code = f"import {names}\nos.dup2(os.pipe()[0], 3)\nprint('ready', flush=True)\n{call}"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        folder, state = Path(f"/proc/{process.pid}"), "R" if "sum" in call else "S"
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            until(lambda: f"State:\t{state}" in (folder / "status").read_text())
            time.sleep(0.2)
            seen = loads({process.pid: None})[process.pid]
        finally:
            for child in (folder / f"task/{process.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
            process.kill()
    assert seen.sleeps is sleeps and Load.of(seen.told(), seen.at) == seen
    old = Load.of({"used": None, "below_s": 0.0, "moved_bytes": 0}, 0.0)  # of an older server
    assert (old.sleeps, old.waited_s) == (False, 0.0)
