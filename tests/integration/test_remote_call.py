"""A call that does not return: put back where it waits for a lock, left to end by itself where it works."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import time
from pathlib import Path

import pytest
from delivering import in_child
from until import until

from probe.attach.inject import ptrace
from probe.attach.inject.call import CallFailed, RemoteCalls
from probe.attach.inject.injection import inject
from probe.attach.inject.safepoint import stop_safe_thread
from probe.attach.inject.target import Target, examine
from probe.errors import AttachError
from target import Start, stat


def address_in(target: Target, function: str) -> int:
    """Both processes have the same libc, so a function lies as far from getpid there as here."""
    libc = ctypes.CDLL(None)
    own = {name: ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0 for name in ("getpid", function)}
    return target.symbols["getpid"] + own[function] - own["getpid"]


def call(pid: int, function: str, *arguments: int, seconds: float) -> dict:
    target = examine(pid)
    target.symbols[function] = address_in(target, function)
    calls = RemoteCalls(target, stop_safe_thread(target, time.monotonic() + 3))
    calls.write(calls.scratch, bytes(8))
    try:
        calls.call(function, *(argument or calls.scratch for argument in arguments), seconds=seconds)
        outcome = "returned"
    except CallFailed as error:
        outcome = str(error)
    finally:
        stood = calls.close()
        target.memory.close()
    return {"outcome": outcome, "stood": stood}


def test_a_call_that_waits_for_a_lock_is_rolled_back(start: Start):
    target = start("waiting.py", "nanosleep")
    told = in_child(lambda: call(target.pid, "pthread_mutex_lock", 0, seconds=0.2))
    assert told["outcome"] == "returned"  # the mutex was free: 0 bytes
    told = in_child(lambda: call(target.pid, "sem_wait", 0, seconds=0.2))
    assert "rolled back" in told["outcome"]
    target.wait_for("slept", times=target.output.count("slept") + 2)


def test_a_call_that_is_still_working_is_left_to_end_by_itself(start: Start):
    target = start("waiting.py", "spin")
    told = in_child(lambda: call(target.pid, "sleep", 8, seconds=0.2))
    assert "left to end by itself" in told["outcome"]
    assert told["stood"] < 3.0
    assert stat(target.pid)[0] == "S"  # not spinning yet
    until(lambda: stat(target.pid)[0] == "R")
    assert in_child(lambda: call(target.pid, "getpid", seconds=0.5))["outcome"] == "returned"
    assert target.alive


@pytest.mark.parametrize("address", [1])
def test_a_call_that_faults_is_rolled_back(start: Start, address):
    target = start("waiting.py", "nanosleep")
    told = in_child(lambda: call(target.pid, "strlen", address, seconds=0.5))
    assert "signal 11" in told["outcome"] and "rolled back" in told["outcome"]
    target.wait_for("slept", times=target.output.count("slept") + 2)
    assert "broken" not in target.output.splitlines()[-1]


def test_a_process_that_ends_during_a_call_is_reported_as_ended(start: Start):
    pid = start("waiting.py", "sleep").pid

    def code() -> str:
        target = examine(pid)
        target.symbols["mmap"] = address_in(target, "_exit")
        with pytest.raises(AttachError) as raised:
            inject(target, b"", time.monotonic() + 5)
        return raised.value.code

    assert in_child(lambda: [code()]) == ["target-ended"]


def blocked(pid: int) -> dict[str, str]:
    """Thread -> its signal mask."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended
            found[task.name] = (task / "status").read_text().partition("SigBlk:")[2].split()[0]
    return found


def inject_until(pid: int, last: int) -> int:
    """Ends this process before its request to ptrace with this number; returns how many it made if they are fewer."""
    made, request = 0, ptrace._request

    def counted(*arguments: int) -> int:
        nonlocal made
        made += 1
        if made == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return request(*arguments)

    ptrace._request = counted
    inject(examine(pid), b"pass\0", time.monotonic() + 5)
    return made


def test_wherever_the_tracing_process_is_killed_the_thread_has_its_signal_mask_again(start: Start):
    target = start("waiting.py", "nanosleep")
    before = blocked(target.pid)

    def made_by_one_killed_at(last: int) -> int | None:
        made = in_child(lambda: inject_until(target.pid, last))
        until(lambda: blocked(target.pid) == before, 10, why=lambda: f"killed at {last}: {blocked(target.pid)}")
        return made

    made = next(filter(None, map(made_by_one_killed_at, itertools.count(1))))
    target.wait_for("slept", times=target.output.count("slept") + 2)
    assert made > 20
