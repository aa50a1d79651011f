"""Which thread of the target to stop, and whether it may make a call where it stands.

Called by `injection`.  A thread is fit only where it provably holds no lock of malloc, the loader or libpthread, since
the call will take these.  Every other thread is let go at once (some 0.1 ms) and the next one tried.
"""

from __future__ import annotations

import os
import re
import signal
import time

from ...host.memory_maps import mapping_at
from ...host.process_status import thread_status
from ...host.processes import has_ended, read_stat
from ..deferred_signals import ENDING, SignalPending
from ..refusals import permission, refusal
from .target import Target
from .tracee import CannotStop, GroupStopped, Tracee, release_stopped

# Modules in whose code a thread may be holding such a lock.
_LOCKING = re.compile(
    r"(libc[.-]|ld-|ld\.|libpthread|libdl[.-]|libgcc_s|libstdc\+\+|libc\+\+|libhoard|libmemkind|lib[a-z]*san\.|.*malloc)",
    re.IGNORECASE,
)
KERNEL_FLAGS = 0x00000010 | 0x00200000  # PF_IO_WORKER (io_uring), PF_KTHREAD
FUTEX_OPERATION = 0x7F
BITSET_WAITS = (9, 11)  # FUTEX_WAIT_BITSET, FUTEX_WAIT_REQUEUE_PI: conditions and semaphores, never locks of libc
DENIED_SECONDS = 0.5  # the kernel's rules deny for longer, another attach that holds the same thread does not
HANDLER_SECONDS = 0.05  # a signal handler is over by then; what is still blocked is the thread's own mask
PAUSE_SECONDS, SHORT_PAUSE_SECONDS = 0.002, 0.0002  # between two rounds; the short one while a moment may be enough
HURRY_SECONDS = 0.5
FRESH_SECONDS = 0.02  # for which the mappings count as known
STACK_ROOM = 16 << 10  # what pthread_create and mmap use of the stack, several times over
_FRAME_ROOM = 4096  # the signal frame without the extended state, and rounding


class Unfit(Exception):
    """This thread may not make a call where it stands; the message says why."""


def stop_safe_thread(target: Target, deadline: float, takes_locks: bool = True) -> Tracee:
    """A thread stopped where it may call.  takes_locks: whether the call takes locks of libc.
    Raises AttachError when none was found until `deadline` (monotonic), or SignalPending."""
    search = _Search(target, takes_locks)
    began = refreshed = time.monotonic()
    while True:
        for tid in candidates(target):
            if signal.sigpending() & ENDING:  # blocked by the tracer, so that they wait until no thread is stopped
                raise SignalPending
            if thread := search.stop(tid):
                return thread
            if time.monotonic() > deadline:
                break
        release_stopped()
        now = time.monotonic()
        if has_ended(target.pid):
            raise refusal("target-ended", target.pid)
        if now > deadline:
            raise refusal("no-safe-point", target.pid, why=search.reason)
        time.sleep(SHORT_PAUSE_SECONDS if now - began < HURRY_SECONDS else PAUSE_SECONDS)
        if now - refreshed > FRESH_SECONDS:
            target.refresh()
            refreshed = now


def candidates(target: Target) -> list[int]:
    """Thread ids in the order to try: asleep in a call that no stop disturbs first; of equals, the main thread last.

    Read from /proc, so it may be out of date when a thread is stopped; its fitness is judged only then.
    """
    ranked = []
    for tid in map(int, os.listdir(f"/proc/{target.pid}/task")):
        preference = _preference(target, tid)
        if preference is not None:
            ranked.append((preference, tid == target.pid, tid))
    return [tid for _, _, tid in sorted(ranked)]


def _preference(target: Target, tid: int) -> int | None:
    """0 for the best, None for a thread that cannot be used."""
    calls = target.architecture.calls
    try:
        stat = read_stat(target.pid, tid)
        number, arguments = read_syscall(target.pid, tid)
    except (OSError, ValueError, IndexError):
        return None
    if stat.state in "ZXD" or stat.flags & KERNEL_FLAGS:
        return None
    if stat.state != "S" or number is None:
        return 2  # running: judged once it stands
    if number == calls.futex and arguments[1] & FUTEX_OPERATION not in BITSET_WAITS:
        return 3
    if number in calls.restartable:
        return 0
    return 1 if number in calls.waiting else 4


def read_syscall(pid: int, tid: int) -> tuple[int | None, list[int]]:
    """The system call that the thread sleeps in, and its arguments; None while it is in none.
    Raises OSError, ValueError or IndexError when the thread has ended."""
    with open(f"/proc/{pid}/task/{tid}/syscall") as file:
        fields = file.read().split()
    if not fields[0].isdigit():
        return None, []
    return int(fields[0]), [int(field, 16) for field in fields[1:7]]


class _Search:
    """What the threads tried so far have shown.  reason: why the last one was not used; masked: since when a thread
    stands with a caught signal blocked."""

    def __init__(self, target: Target, takes_locks: bool) -> None:
        self._target = target
        self._takes_locks = takes_locks
        self.reason = "none could be stopped: all are in uninterruptible sleep"
        self._denied_since = 0.0
        self._masked: dict[int, float] = {}

    def stop(self, tid: int) -> Tracee | None:
        """The thread, stopped, if it is fit; otherwise it runs on."""
        try:
            thread = Tracee(tid, self._target.architecture)
        except CannotStop as error:
            self.reason = str(error)
            return None
        except GroupStopped:
            raise refusal("stopped", self._target.pid) from None
        except PermissionError:
            self._denied()
            return None
        self._denied_since = 0.0  # a thread that is ending is denied too
        try:
            check_fit(self._target, thread, self._takes_locks, self._masked)
        except Unfit as unfit:
            self.reason = str(unfit)
            thread.let_go()
            return None
        return thread

    def _denied(self) -> None:
        """Another attach may hold this very thread, for milliseconds; the kernel's rules stay as they are."""
        self.reason = "the kernel refused tracing"
        self._denied_since = self._denied_since or time.monotonic()
        if time.monotonic() > self._denied_since + DENIED_SECONDS:
            raise permission(self._target.pid, self._target.status, memory_opened=True)


def check_fit(target: Target, thread: Tracee, takes_locks: bool, masked: dict[int, float]) -> None:
    """Raises Unfit unless the thread may call.  masked: since when a thread stands with a caught signal blocked."""
    try:
        _check_descriptor(target, thread)
        _check_stack(target, thread)
        if not takes_locks:
            return
        if target.architecture.syscall(thread.registers) is not None:
            _check_syscall(target, thread)
        else:
            _check_code(target, thread)
            _check_handler(target, thread, masked)
    except OSError as error:
        raise Unfit(str(error)) from None


def _check_descriptor(target: Target, thread: Tracee) -> None:
    """The thread register must point at a struct pthread that bears this thread's id."""
    block = thread.registers[target.architecture.thread_block]
    inside = target.memory.read(block + target.thread_id_offset, 4)
    if int.from_bytes(inside, "little") != thread_status(target.pid, thread.tid).own_id:
        raise Unfit(f"thread {thread.tid} is not one of libpthread's")


def _check_stack(target: Target, thread: Tracee) -> None:
    stack = thread.registers[target.architecture.stack]
    mapping = mapping_at(target.mappings, stack)
    if mapping is None or "w" not in mapping.permissions:
        raise Unfit(f"the stack of thread {thread.tid} is unknown")
    grows = mapping.path == "[stack]"
    if stack - (_FRAME_ROOM + len(thread.extended) + (0 if grows else STACK_ROOM)) < mapping.start:
        raise Unfit(f"thread {thread.tid} has little stack left")


def _check_syscall(target: Target, thread: Tracee) -> None:
    """malloc, the loader and pthread_create make few system calls under a lock; any other call is fit."""
    architecture, registers = target.architecture, thread.registers
    number = architecture.syscall(registers)
    module = target.place(registers[architecture.pc])
    if not may_lock(target, module):
        return
    if number == architecture.calls.futex:
        if architecture.argument(registers, 1) & FUTEX_OPERATION not in BITSET_WAITS:
            raise Unfit(f"thread {thread.tid} waits for a lock in {os.path.basename(module)}")
    elif number in architecture.calls.under_a_lock and not (
        number == architecture.calls.read and _is_stream(target.pid, architecture.argument(registers, 0))
    ):
        raise Unfit(f"thread {thread.tid} is in system call {number} of {os.path.basename(module)}")


def _is_stream(pid: int, descriptor: int) -> bool:
    """The loader reads regular files only."""
    try:
        path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return False
    return not path.startswith("/") or path.startswith("/dev/")


def _check_code(target: Target, thread: Tracee) -> None:
    module = target.place(thread.registers[target.architecture.pc])
    # [vdso] is called from anywhere, so also by an allocator under its lock
    if module == "nowhere" or module.startswith("[v") or may_lock(target, module):
        raise Unfit(f"thread {thread.tid} runs in {os.path.basename(module)}")


def may_lock(target: Target, module: str) -> bool:
    """Whether a thread in this module's code may hold a lock that the call takes."""
    return module == target.allocator or bool(_LOCKING.match(os.path.basename(module)))


def _check_handler(target: Target, thread: Tracee, masked: dict[int, float]) -> None:
    """A signal handler may have interrupted malloc; while it runs, its signal is blocked."""
    status = thread_status(target.pid, thread.tid)
    if status.blocked & status.caught:
        now = time.monotonic()
        if now - masked.setdefault(thread.tid, now) <= HANDLER_SECONDS:
            raise Unfit(f"thread {thread.tid} may be running a signal handler")
