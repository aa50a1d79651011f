"""Which thread of the target to stop, and whether it may make a call where it stands.

Called by `plant`.  A thread is fit only where it provably holds no lock of malloc, the loader or libpthread,
since the call will take these.  Every other thread is let go at once (some 0.1 ms) and the next one tried.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter

from ..errors import AttachError
from . import ptrace, refusals
from .memory import mapping_at
from .status import thread_status
from .stopped import CannotStop, GroupStopped, StoppedThread
from .target import Target

# Modules in whose code a thread may be holding such a lock.
_LOCKING = re.compile(
    r"(libc[.-]|ld-|ld\.|libpthread|libdl[.-]|libgcc_s|libstdc\+\+|libc\+\+|libjemalloc|libtcmalloc|libmimalloc|"
    r"libhoard|libmemkind|lib[a-z]*san\.|.*[jt][ce]?malloc)",
    re.IGNORECASE,
)
_FUTEX_OPERATION = 0x7F
_BITSET_WAITS = (9, 11)  # FUTEX_WAIT_BITSET, FUTEX_WAIT_REQUEUE_PI: conditions and semaphores, never locks of libc
KERNEL_FLAGS = 0x00000010 | 0x00200000  # PF_IO_WORKER (io_uring), PF_KTHREAD
HANDLER_TRIES = 25  # a signal handler is over by then; what is still blocked is the thread's own mask
PAUSE_SECONDS = 0.002
STACK_ROOM = 16 << 10  # what pthread_create and mmap use of the stack, several times over
_FRAME_ROOM = 4096  # the signal frame without the extended state, and rounding


class Withdrawn(Exception):
    """Whoever asked for the attach has given up."""


def stop_safe_thread(target: Target, deadline: float, takes_locks: bool = True) -> StoppedThread:
    """A thread stopped where it may call.  takes_locks: whether the call takes locks of libc.
    Raises AttachError when none was found until `deadline` (monotonic), or Withdrawn."""
    masked: Counter[int] = Counter()
    reason = "it has no threads"
    while True:
        for tid in candidates(target):
            _check_withdrawn()
            try:
                thread = StoppedThread(tid, target.architecture)
            except CannotStop as error:
                reason = str(error)
                continue
            except GroupStopped:
                raise refusals.stopped(target.pid) from None
            except PermissionError:
                raise refusals.permission(target.pid, target.status, memory_opened=True) from None
            unfit = _why_unfit(target, thread, takes_locks, masked)
            if unfit is None:
                return thread
            reason = unfit
            thread.let_go()
        if time.monotonic() > deadline:
            raise _no_safe_point(target, reason)
        time.sleep(PAUSE_SECONDS)
        target.refresh()


def candidates(target: Target) -> list[int]:
    """Thread ids, the best first: asleep in a call that a stop does not disturb, not the main thread."""
    ranked = []
    for tid in map(int, os.listdir(f"/proc/{target.pid}/task")):
        place = _place_in_line(target, tid)
        if place is not None:
            ranked.append((place, tid == target.pid, tid))
    return [tid for _, _, tid in sorted(ranked)]


def _place_in_line(target: Target, tid: int) -> int | None:
    calls = target.architecture.calls
    try:
        state, flags = _state(target.pid, tid)
        number, arguments = _syscall(target.pid, tid)
    except (OSError, ValueError, IndexError):
        return None
    if state in "ZXD" or flags & KERNEL_FLAGS:
        return None
    if state != "S" or number is None:
        return 2  # running: judged once it stands
    if number == calls.futex and arguments[1] & _FUTEX_OPERATION not in _BITSET_WAITS:
        return 3
    if number in calls.restartable:
        return 0
    return 1 if number in calls.waiting else 4


def _state(pid: int, tid: int) -> tuple[str, int]:
    with open(f"/proc/{pid}/task/{tid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return fields[0], int(fields[6])


def _syscall(pid: int, tid: int) -> tuple[int | None, list[int]]:
    with open(f"/proc/{pid}/task/{tid}/syscall") as file:
        fields = file.read().split()
    if not fields[0].isdigit():
        return None, []
    return int(fields[0]), [int(field, 16) for field in fields[1:7]]


def _why_unfit(target: Target, thread: StoppedThread, takes_locks: bool, masked: Counter[int]) -> str | None:
    """None when the thread may call.  masked: how often a thread stood with a caught signal blocked."""
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
    extended = ptrace.get_regset(thread.tid, target.architecture.extended_regset)
    room = _FRAME_ROOM + len(extended) + (0 if grows else STACK_ROOM)
    return f"thread {thread.tid} has little stack left" if stack - room < mapping.start else None


def _lock_in_syscall(target: Target, thread: StoppedThread) -> str | None:
    """malloc, the loader and pthread_create make few system calls under a lock; any other call is fit."""
    architecture, registers = target.architecture, thread.registers
    number = architecture.syscall(registers)
    module = target.place(architecture.pc(registers))
    if not _may_lock(target, module):
        return None
    if number == architecture.calls.futex:
        operation = architecture.argument(registers, 1) & _FUTEX_OPERATION
        return None if operation in _BITSET_WAITS else f"waits for a lock in {os.path.basename(module)}"
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


def _in_handler(target: Target, thread: StoppedThread, masked: Counter[int]) -> str | None:
    """A signal handler may have interrupted malloc; while it runs, its signal is blocked."""
    status = thread_status(target.pid, thread.tid)
    if not status.blocked & status.caught:
        return None
    masked[thread.tid] += 1
    if masked[thread.tid] > HANDLER_TRIES:
        return None
    return f"thread {thread.tid} may be running a signal handler"


def _check_withdrawn() -> None:
    """The tracer blocks these signals, so that they wait until no thread is stopped."""
    if signal.sigpending() & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}:
        raise Withdrawn


def _no_safe_point(target: Target, reason: str) -> AttachError:
    return AttachError(
        f"No thread of process {target.pid} came to a point where it may be used (the last one: {reason}).",
        f"Try again: probe attach {target.pid}",
        "no-safe-point",
    )
