"""A thread is used only where it holds no lock of libc, and only if it is one of libpthread's."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from delivering import in_child
from until import states, until

from probe.attach.inject.safepoint import HANDLER_SECONDS, candidates, may_lock, stop_safe_thread
from probe.attach.inject.target import examine
from probe.attach.inject.tracee import CannotStop, Tracee, release_stopped
from probe.errors import AttachError
from probe.host.memory_maps import read_mappings
from target import Start


def search(pid: int, seconds: float = 0.3, **change) -> dict:
    """Who is found, or why nobody is."""
    target = dataclasses.replace(examine(pid), **change)
    began = time.monotonic()
    try:
        thread = stop_safe_thread(target, began + seconds)
    except AttachError as error:
        return {"code": error.code, "message": error.message}
    thread.let_go()
    return {"tid": thread.tid, "seconds": time.monotonic() - began}


def test_a_thread_whose_descriptor_bears_another_id_is_refused(start: Start):
    target = start("waiting.py", "sleep")
    until(lambda: states(target.pid) == "S")  # no longer in libc, as after what it has printed
    assert in_child(lambda: search(target.pid))["tid"] == target.pid
    told = in_child(lambda: search(target.pid, thread_id_offset=examine(target.pid).thread_id_offset + 16))
    assert told["code"] == "no-safe-point"
    assert "not one of libpthread's" in told["message"]


def test_a_thread_in_the_code_of_an_allocator_is_refused(start: Start):
    target = start("waiting.py", "spin")
    with contextlib.closing(examine(target.pid)) as facts:
        interpreter = facts.place(facts.symbols["Py_IsInitialized"])
    told = in_child(lambda: search(target.pid, allocator=interpreter))
    assert told["code"] == "no-safe-point"
    assert f"runs in {os.path.basename(interpreter)}" in told["message"]


def is_blocked(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigBlk:")[2].split()[0], 16) >> number - 1 & 1)


def test_a_thread_that_may_be_in_a_signal_handler_is_given_time_to_leave_it(start: Start):
    target = start("waiting.py", "masked_spin")
    until(lambda: is_blocked(target.pid, signal.SIGUSR1))
    assert in_child(lambda: search(target.pid, seconds=0))["code"] == "no-safe-point"
    told = in_child(lambda: search(target.pid, seconds=3))
    assert told["seconds"] > HANDLER_SECONDS


@pytest.fixture
def sleeper(start: Start, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process whose only thread is in uninterruptible sleep until its FIFO is opened for writing."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pid = start("waiting.py", "uninterruptible", str(fifo)).pid
    until(lambda: states(pid) == "D")
    yield pid, fifo
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):  # SIGTERM would be heard only after the sleep, and never by the child
        os.kill(each, signal.SIGKILL)


def test_a_thread_that_stops_late_is_let_go_at_that_moment(sleeper):
    pid, fifo = sleeper

    def stop_late() -> list[str]:
        with contextlib.closing(examine(pid)) as target:
            with pytest.raises(CannotStop, match="does not stop"):
                Tracee(pid, target.architecture)
            fifo.write_bytes(b"")
            until(lambda: states(pid) == "t")
            release_stopped()
            until(lambda: states(pid) == "D")  # in its next sleep
            return [states(pid)]

    assert in_child(stop_late) == ["D"]


def test_a_thread_that_did_not_stop_in_time_may_be_tried_again(sleeper):
    pid, fifo = sleeper

    def twice() -> str:
        with contextlib.closing(examine(pid)) as target:
            for _ in range(2):
                with pytest.raises(CannotStop, match="does not stop"):
                    Tracee(pid, target.architecture)
            fifo.write_bytes(b"")
            until(lambda: states(pid) == "t")  # on a full machine its child takes a while to let it go on
            thread = Tracee(pid, target.architecture)
            stood = states(pid)
            thread.let_go()
            return stood

    assert in_child(twice) == "t"
    until(lambda: states(pid) == "D")


def test_a_thread_with_little_stack_left_is_refused(start: Start):
    target = start("waiting.py", "sleep")
    short = [
        mapping._replace(start=mapping.end - 4096) if mapping.path == "[stack]" else mapping
        for mapping in read_mappings(target.pid)
    ]
    told = in_child(lambda: search(target.pid, seconds=0, mappings=short))
    assert "stack" in told["message"]


@pytest.mark.parametrize(
    ("path", "may"),
    [
        ("/lib/x86_64-linux-gnu/libc.so.6", True),
        ("/lib/x86_64-linux-gnu/libc-2.31.so", True),
        ("/lib64/ld-linux-x86-64.so.2", True),
        ("/usr/lib/libjemalloc.so.2", True),
        ("/usr/lib/libtcmalloc_minimal.so.4", True),
        ("/usr/lib/libmimalloc-secure.so.2", True),
        ("/usr/lib/libtbbmalloc_proxy.so.2", True),
        ("/usr/lib/librpmalloc.so", True),
        ("/usr/lib/libsnmallocshim.so", True),
        ("/usr/lib/libc.so.6 (deleted)", True),
        ("/app/own-malloc", True),
        ("/usr/lib/libcublas.so.12", False),
        ("/site-packages/torch/lib/libc10.so", False),
        ("/usr/bin/python3.11", False),
        ("[anonymous]", False),
    ],
)
def test_modules_whose_code_may_hold_a_lock(path, may):
    assert may_lock(SimpleNamespace(allocator="/app/own-malloc"), path) is may  # type: ignore[arg-type]


def test_of_equally_good_threads_the_main_one_is_tried_last(start: Start):
    target = start("waiting.py", "sleep_in_every_thread")
    until(lambda: states(target.pid) == "SSSS")
    others = sorted({int(tid) for tid in os.listdir(f"/proc/{target.pid}/task")} - {target.pid})
    with contextlib.closing(examine(target.pid)) as facts:
        until(lambda: candidates(facts) == [*others, target.pid])
