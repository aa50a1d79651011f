"""Give the target the text to run: the one moment in which a thread of it stands.

Called by `tracer`.  First way: an executable page and a new thread, which waits for the GIL as any thread
does.  Where executable pages are refused: the text in ordinary memory and Py_AddPendingCall, which the main
thread runs once it reaches bytecode.  Either way the text must never raise.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import AttachError
from .call import CallFailed, RemoteCalls
from .rehearsal import rehearse
from .safepoint import stop_safe_thread
from .target import Target
from .target_memory import PAGE

READ, WRITE, EXECUTE = 1, 2, 4
PRIVATE_ANONYMOUS = 0x22
NO_FILE = (1 << 64) - 1
NO_CLONE3 = -errno.ENOSYS  # a container's seccomp filter; libc then takes clone
TRIES = 3  # of calls that were rolled back
THREAD, PENDING_CALL = "thread", "pending call"

Way = Callable[[Target, RemoteCalls, bytes], int]


@dataclass(frozen=True)
class Planted:
    """way: THREAD or PENDING_CALL; tid: of the thread that stood, for stopped_ms; thread: the new one's id as its
    own namespace has it, 0 where there is none."""

    way: str
    tid: int
    stopped_ms: float
    thread: int


class _PageRefused(Exception):
    """The target may not map such a page; errno says why."""

    def __init__(self, code: int) -> None:
        super().__init__(os.strerror(code))
        self.code = code


def plant(target: Target, text: bytes, deadline: float) -> Planted:
    """Have the target run the text, soon; deadline: monotonic.  Raises AttachError."""
    rehearse(target)
    try:
        return _plant(target, text, deadline, THREAD, _start_thread)
    except _PageRefused:
        pass
    try:
        return _plant(target, text, deadline, PENDING_CALL, _add_pending_call)
    except _PageRefused as error:
        raise AttachError(
            f"Process {target.pid} could not map a page: {error}.",
            "Raise its limit of memory (ulimit -v, the container's limit).",
            "no-memory",
        ) from None


def _plant(target: Target, text: bytes, deadline: float, name: str, way: Way) -> Planted:
    failure: CallFailed | OSError | None = None
    for _ in range(TRIES):
        thread = stop_safe_thread(target, deadline, takes_locks=way is _start_thread)
        calls, new = None, 0
        try:
            calls = RemoteCalls(target, thread)
            new = way(target, calls, text)
            failure = None
        except (CallFailed, OSError) as error:
            failure = error
        finally:
            seconds = calls.close() if calls else thread.let_go()
        if failure is None:
            return Planted(name, thread.tid, seconds * 1e3, new)
    raise AttachError(
        f"A call in process {target.pid} failed: {failure}.", f"Try again: probe attach {target.pid}", "call-failed"
    )


def _start_thread(target: Target, calls: RemoteCalls, text: bytes) -> int:
    architecture = target.architecture
    length = _pages(architecture.text_offset + len(text))
    page = _map(target, calls, length, READ | EXECUTE)
    calls.write(page, architecture.stub(page, length, target.symbols) + text)
    calls.write(calls.scratch, bytes(8))
    calls.call("pthread_create", calls.scratch, 0, architecture.stub_entry(page), page)
    made = [calls.values[number] for number in architecture.calls.clones if number in calls.values]
    if max(made, default=0) > 0:
        return max(made)
    failures = [value for value in made if value != NO_CLONE3] or [-errno.EAGAIN]
    calls.call("munmap", page, length)
    raise AttachError(
        f"Process {target.pid} could not create a thread: {os.strerror(-failures[0])}.",
        "Raise its limit of processes (ulimit -u, pids.max of the cgroup) or of memory.",
        "no-thread",
    )


def _add_pending_call(target: Target, calls: RemoteCalls, text: bytes) -> int:
    page = _map(target, calls, _pages(len(text)), READ | WRITE)
    calls.write(page, text)
    calls.call("Py_AddPendingCall", target.symbols["PyRun_SimpleString"], page)
    return 0


def _map(target: Target, calls: RemoteCalls, length: int, protection: int) -> int:
    address = calls.call(
        "mmap", 0, length, protection, PRIVATE_ANONYMOUS, NO_FILE, 0, until=target.architecture.calls.mmap
    )
    if address < 0:
        raise _PageRefused(-address)
    return address


def _pages(length: int) -> int:
    return (length + PAGE - 1) & ~(PAGE - 1)
