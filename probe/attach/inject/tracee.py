"""One thread of the target, traced and stopped.

Made by `safepoint` for each thread that it tries; the other threads of the target keep running.  Whoever makes one lets
it go; otherwise it goes on when this process ends.  PTRACE_ATTACH is never used.

The kernel detaches stopped threads only, and the request to stop cannot be taken back.  So a thread that did not stop
in time stays traced; every later wait lets it go at the moment it stops.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from . import ptrace
from .x86_64 import X86_64, Registers

GENERAL_REGSET = 1  # NT_PRSTATUS
STOP_SECONDS = 0.3  # a thread that runs or sleeps stops within microseconds; one in D state does not
LOOKS = 50  # without a pause: most stops arrive within some 20 us
_STOPS = {signal.SIGCHLD}  # sent at a tracee's stops too
SYSCALL_TRAP = signal.SIGTRAP | 0x80  # as PTRACE_O_TRACESYSGOOD marks it
_stopping: set[int] = set()  # threads that were let go before they stopped


class CannotStop(Exception):
    """This thread ended or does not stop.  Another may do."""


class GroupStopped(Exception):
    """SIGSTOP or a similar signal has stopped the whole target."""


class Tracee:
    """registers, extended: as they were at the stop."""

    def __init__(self, tid: int, architecture: X86_64) -> None:
        """Raises CannotStop, GroupStopped, or PermissionError when the kernel refuses tracing."""
        self.tid = tid
        self._architecture = architecture
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # for `wait`; the process is ours alone
        self.since = time.monotonic()
        is_stopping = tid in _stopping
        _stopping.discard(tid)  # if it has stopped meanwhile, that is the stop to wait for
        release_stopped()
        try:
            if not is_stopping:
                ptrace.seize(tid)
                ptrace.interrupt(tid)
        except ProcessLookupError:
            raise CannotStop(f"thread {tid} ended") from None
        try:
            self._stop()
            self.registers = self.get_registers()
            self.extended = ptrace.get_regset(tid, architecture.extended_regset)
        except BaseException:
            self.let_go()
            raise

    def get_registers(self) -> Registers:
        return self._architecture.unpack(ptrace.get_regset(self.tid, GENERAL_REGSET))

    def set_registers(self, registers: Registers) -> None:
        ptrace.set_regset(self.tid, GENERAL_REGSET, self._architecture.pack(registers))

    def wait(self, seconds: float) -> int | None:
        """The status word of the next stop, None when there was none in time.  Raises CannotStop."""
        deadline = time.monotonic() + seconds
        looks = 0
        while True:
            release_stopped()
            pid, status = os.waitpid(self.tid, ptrace.WAIT_ALL | os.WNOHANG)
            if pid:
                if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                    raise CannotStop(f"thread {self.tid} ended")
                return status
            if time.monotonic() > deadline:
                return None
            looks += 1
            if looks > LOOKS:  # asleep: on a full machine the thread needs the core that we have
                signal.sigtimedwait(_STOPS, max(0.0, deadline - time.monotonic()))

    def let_go(self) -> float:
        """Detach, now or once it stops; returns for how many seconds the thread stood."""
        try:
            ptrace.detach(self.tid)
        except OSError:  # it has not stopped, or has ended
            _stopping.add(self.tid)
        return time.monotonic() - self.since

    def _stop(self) -> None:
        status = self._wait_for_stop()
        while not is_event_stop(status):  # a signal for the target came first
            ptrace.resume(self.tid, signal_of(status))
            status = self._wait_for_stop()
        if os.WSTOPSIG(status) != signal.SIGTRAP:
            raise GroupStopped

    def _wait_for_stop(self) -> int:
        status = self.wait(STOP_SECONDS)
        if status is None:
            raise CannotStop(f"thread {self.tid} does not stop (uninterruptible)")
        self.since = time.monotonic()
        return status


def release_stopped() -> None:
    """Let go of the threads that have stopped since they were given up, and forget those that have ended."""
    for tid in list(_stopping):
        with contextlib.suppress(OSError):
            pid, status = os.waitpid(tid, ptrace.WAIT_ALL | os.WNOHANG)
            if not pid:
                continue
            if os.WIFSTOPPED(status):
                ptrace.detach(tid, signal_of(status))
        _stopping.discard(tid)


def is_event_stop(status: int) -> bool:
    return status >> 16 == ptrace.EVENT_STOP


def is_syscall_stop(status: int) -> bool:
    return os.WSTOPSIG(status) == SYSCALL_TRAP


def signal_of(status: int) -> int:
    """The signal that the thread has stopped to receive; 0 at a stop of another kind."""
    return 0 if is_event_stop(status) or is_syscall_stop(status) else os.WSTOPSIG(status)
