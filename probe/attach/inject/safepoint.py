"""Which thread of the target to stop, and whether it may make a call where it stands.

Called by `plant`.  A thread is fit only where it provably holds no lock of malloc, the loader or libpthread,
since the call will take these.  Every other thread is let go at once (some 0.1 ms) and the next one tried.
"""

from __future__ import annotations

import os
import re
import signal
import time

from ...errors import AttachError
from ...host.memory_maps import mapping_at
from ...host.process_status import thread_status
from .. import refusals
from ..withdrawal import ENDING, Withdrawn
from .candidates import BITSET_WAITS, FUTEX_OPERATION, candidates
from .stopped_thread import CannotStop, GroupStopped, StoppedThread
from .target import Target

# Modules in whose code a thread may be holding such a lock.
_LOCKING = re.compile(
    r"(libc[.-]|ld-|ld\.|libpthread|libdl[.-]|libgcc_s|libstdc\+\+|libc\+\+|libjemalloc|libtcmalloc|libmimalloc|"
    r"libhoard|libmemkind|lib[a-z]*san\.|.*[jt][ce]?malloc)",
    re.IGNORECASE,
)
DENIED_SECONDS = 0.5  # the kernel's rules deny for longer, other attaches that hold the same thread do not
HANDLER_SECONDS = 0.05  # a signal handler is over by then; what is still blocked is the thread's own mask
PAUSE_SECONDS, SHORT_PAUSE_SECONDS = 0.002, 0.0002  # between two rounds; at first, while a moment may be enough
HURRY_SECONDS = 0.5
FRESH_SECONDS = 0.02  # for which the mappings count as known
STACK_ROOM = 16 << 10  # what pthread_create and mmap use of the stack, several times over
_FRAME_ROOM = 4096  # the signal frame without the extended state, and rounding


def stop_safe_thread(target: Target, deadline: float, takes_locks: bool = True) -> StoppedThread:
    """A thread stopped where it may call.  takes_locks: whether the call takes locks of libc.
    Raises AttachError when none was found until `deadline` (monotonic), or Withdrawn."""
    search = _Search(target, takes_locks)
    began = refreshed = time.monotonic()
    while True:
        for tid in candidates(target):
            _check_withdrawn()
            if thread := search.stop(tid):
                return thread
            if time.monotonic() > deadline:
                raise search.failure()
        now = time.monotonic()
        time.sleep(SHORT_PAUSE_SECONDS if now - began < HURRY_SECONDS else PAUSE_SECONDS)
        if now - refreshed > FRESH_SECONDS:
            target.refresh()
            refreshed = now


class _Search:
    """What was learnt from the threads tried so far.  masked: since when one stands with a caught signal blocked."""

    def __init__(self, target: Target, takes_locks: bool) -> None:
        self._target = target
        self._takes_locks = takes_locks
        self._reason = "none could be stopped"
        self._denied_since = 0.0
        self._masked: dict[int, float] = {}

    def stop(self, tid: int) -> StoppedThread | None:
        """The thread, stopped, if it is fit; else it runs on."""
        try:
            thread = StoppedThread(tid, self._target.architecture)
        except CannotStop as error:
            self._reason = str(error)
            return None
        except GroupStopped:
            raise refusals.stopped(self._target.pid) from None
        except PermissionError:
            self._denied()
            return None
        self._denied_since = 0.0  # a thread that is ending is denied too
        unfit = why_unfit(self._target, thread, self._takes_locks, self._masked)
        if unfit is None:
            return thread
        self._reason = unfit
        thread.let_go()
        return None

    def failure(self) -> AttachError:
        return AttachError(
            f"No thread of process {self._target.pid} came to a point where it may be used ({self._reason}).",
            f"Try again: probe attach {self._target.pid}",
            "no-safe-point",
        )

    def _denied(self) -> None:
        """Another attach may hold this very thread, for milliseconds; the kernel's rules stay as they are."""
        self._reason = "the kernel refused tracing"
        self._denied_since = self._denied_since or time.monotonic()
        if time.monotonic() > self._denied_since + DENIED_SECONDS:
            raise refusals.permission(self._target.pid, self._target.status, memory_opened=True)


def why_unfit(target: Target, thread: StoppedThread, takes_locks: bool, masked: dict[int, float]) -> str | None:
    """None when the thread may call.  masked: since when a thread stands with a caught signal blocked."""
    try:
        reason = _no_pthread(target, thread) or _little_stack(target, thread)
        if reason or not takes_locks:
            return reason
        if target.architecture.syscall(thread.registers) is not None:
            return _lock_in_syscall(target, thread)
        return _lock_in_code(target, thread) or _in_handler(target, thread, masked)
    except OSError as error:
        return str(error)


def _no_pthread(target: Target, thread: StoppedThread) -> str | None:
    """Whether the thread register points at a struct pthread that bears this thread's id."""
    block = target.architecture.thread_block(thread.registers)
    inside = target.memory.read(block + target.thread_id_offset, 4)
    own_id = thread_status(target.pid, thread.tid).own_id
    if int.from_bytes(inside, "little") != own_id:
        return f"thread {thread.tid} is none of libpthread's"
    return None


def _little_stack(target: Target, thread: StoppedThread) -> str | None:
    stack = target.architecture.stack(thread.registers)
    mapping = mapping_at(target.mappings, stack)
    if mapping is None or "w" not in mapping.permissions:
        return f"the stack of thread {thread.tid} is unknown"
    grows = mapping.path == "[stack]"
    room = _FRAME_ROOM + len(thread.extended) + (0 if grows else STACK_ROOM)
    return f"thread {thread.tid} has little stack left" if stack - room < mapping.start else None


def _lock_in_syscall(target: Target, thread: StoppedThread) -> str | None:
    """malloc, the loader and pthread_create make few system calls under a lock; any other call is fit."""
    architecture, registers = target.architecture, thread.registers
    number = architecture.syscall(registers)
    module = target.place(architecture.pc(registers))
    if not _may_lock(target, module):
        return None
    if number == architecture.calls.futex:
        operation = architecture.argument(registers, 1) & FUTEX_OPERATION
        return None if operation in BITSET_WAITS else f"waits for a lock in {os.path.basename(module)}"
    if number not in architecture.calls.under_a_lock:
        return None
    if number == architecture.calls.read and _is_stream(target.pid, architecture.argument(registers, 0)):
        return None
    return f"in system call {number} of {os.path.basename(module)}"


def _is_stream(pid: int, descriptor: int) -> bool:
    """The loader reads regular files only."""
    try:
        path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return False
    return not path.startswith("/") or path.startswith("/dev/")


def _lock_in_code(target: Target, thread: StoppedThread) -> str | None:
    module = target.place(target.architecture.pc(thread.registers))
    # [vdso] is called from anywhere, so also by an allocator under its lock
    if module == "nowhere" or module.startswith("[v") or _may_lock(target, module):
        return f"runs in {os.path.basename(module)}"
    return None


def _may_lock(target: Target, module: str) -> bool:
    return module == target.allocator or bool(_LOCKING.match(os.path.basename(module)))


def _in_handler(target: Target, thread: StoppedThread, masked: dict[int, float]) -> str | None:
    """A signal handler may have interrupted malloc; while it runs, its signal is blocked."""
    status = thread_status(target.pid, thread.tid)
    if not status.blocked & status.caught:
        return None
    now = time.monotonic()
    if now - masked.setdefault(thread.tid, now) > HANDLER_SECONDS:
        return None
    return f"thread {thread.tid} may be running a signal handler"


def _check_withdrawn() -> None:
    """The tracer blocks these signals, so that they wait until no thread is stopped."""
    if signal.sigpending() & ENDING:
        raise Withdrawn
