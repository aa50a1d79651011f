"""Make the target run a text: the one moment in which a thread of it stands.

Called by `tracer`.  First way: an executable page and a new thread, which waits for the GIL like any thread.  Where
executable pages are refused: the text in ordinary memory and Py_AddPendingCall, which the main thread runs once it
reaches bytecode.  Either way the text must never raise.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from ...host.processes import has_ended
from ..refusals import refusal
from . import ptrace
from .call import CallFailed, RemoteCalls
from .elf import PAGE
from .safepoint import check_fit, stop_safe_thread
from .target import Target
from .tracee import GENERAL_REGSET, CannotStop, Tracee, release_stopped

READ, WRITE, EXECUTE = 1, 2, 4
PRIVATE_ANONYMOUS = 0x22
NO_FILE = (1 << 64) - 1
NO_CLONE3 = -errno.ENOSYS  # from a container's seccomp filter; libc then takes clone
TRIES = 3  # of calls that were rolled back
THREAD, PENDING_CALL = "thread", "pending call"
_GENERAL, _EXTENDED = bytes(27 * 8), bytes(2696)  # as large as registers and extended state usually are


@dataclass(frozen=True)
class Injected:
    """way: THREAD or PENDING_CALL; tid: of the thread that stood, for stopped_ms; thread: the new one's id in its own
    namespace, 0 where there is none."""

    way: str
    tid: int
    stopped_ms: float
    thread: int


class _PageRefused(Exception):
    """The target may not map such a page; the message says why."""


def inject(target: Target, text: bytes, deadline: float) -> Injected:
    """Make the target run the text soon; deadline: monotonic.  Raises AttachError."""
    warm_up(target)
    for way, run in ((THREAD, _start_thread), (PENDING_CALL, _add_pending_call)):
        try:
            return _inject(target, text, deadline, way, run)
        except _PageRefused as error:
            refused = error
    raise refusal("no-memory", target.pid, why=refused)


def _inject(
    target: Target, text: bytes, deadline: float, way: str, run: Callable[[Target, RemoteCalls, bytes], int]
) -> Injected:
    failure: CallFailed | CannotStop | OSError | None = None
    for _ in range(TRIES):
        thread = stop_safe_thread(target, deadline, takes_locks=way == THREAD)
        calls, new = None, 0
        try:
            calls = RemoteCalls(target, thread)
            new = run(target, calls, text)
            failure = None
        except (CallFailed, CannotStop, OSError) as error:
            failure = error
        finally:
            seconds = calls.close() if calls else thread.let_go()
        if failure is None:
            return Injected(way, thread.tid, seconds * 1e3, new)
    if has_ended(target.pid):
        raise refusal("target-ended", target.pid)
    raise refusal("call-failed", target.pid, why=failure)


def _start_thread(target: Target, calls: RemoteCalls, text: bytes) -> int:
    architecture = target.architecture
    length = _pages(architecture.text_offset + len(text))
    page = _map(target, calls, length, READ | EXECUTE)
    calls.write(page, architecture.stub(page, length, target.symbols) + text)
    calls.write(calls.scratch, bytes(8))
    calls.call("pthread_create", calls.scratch, 0, page + architecture.stub_offset, page)
    made = [calls.values[number] for number in architecture.calls.clones if number in calls.values]
    if max(made, default=0) > 0:
        return max(made)
    failures = [value for value in made if value != NO_CLONE3] or [-errno.EAGAIN]
    calls.call("munmap", page, length)
    raise refusal("no-thread", target.pid, why=os.strerror(-failures[0]))


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
        raise _PageRefused(os.strerror(-address))
    return address


def _pages(length: int) -> int:
    return (length + PAGE - 1) & ~(PAGE - 1)


class _Untraced(Tracee):
    """A thread that is not traced: every ptrace request about it fails with ESRCH."""

    def __init__(self, target: Target) -> None:
        self.tid, self._architecture, self.since = target.pid, target.architecture, 0.0
        self.registers, self.extended = target.architecture.unpack(_GENERAL), _EXTENDED


def warm_up(target: Target) -> None:
    """Do everything once that is done while a thread stands, on a thread that is not traced.

    A process that was just forked copies each page of Python's that it touches first; without this a third of the time
    for which the thread stands would go into that.  Takes some 0.5 ms; does not touch the target, raises nothing.
    """
    thread, architecture = _Untraced(target), target.architecture
    registers = architecture.resumed(thread.registers)
    steps: list[Callable[[], object]] = [
        lambda: ptrace.interrupt(thread.tid),
        lambda: os.waitpid(thread.tid, ptrace.WAIT_ALL | os.WNOHANG),
        thread.get_registers,
        lambda: ptrace.get_regset(thread.tid, architecture.extended_regset),
        lambda: check_fit(target, thread, True, {}),
        lambda: ptrace.get_signal_mask(thread.tid),
        lambda: architecture.signal_frame(registers, _EXTENDED, 0, (0, 0, 0)),
        lambda: target.memory.read(target.symbols["getpid"], 8),
        lambda: ptrace.set_signal_mask(thread.tid, 0),
        lambda: architecture.pack(architecture.calling(registers, 0, [0, 0, 0, 0, 0, 0], 0)),
        lambda: ptrace.set_regset(thread.tid, GENERAL_REGSET, _GENERAL),
        lambda: ptrace.resume_to_syscall(thread.tid),
        lambda: ptrace.syscall_stop(thread.tid),
        lambda: architecture.stub(0, 0, target.symbols),
        thread.let_go,
        release_stopped,
    ]
    for step in steps:
        with contextlib.suppress(Exception):
            step()
