"""One thread of the target, traced and stopped.

Made by `safepoint` for each thread that it tries; the other threads of the target keep running.  Whoever makes one lets
it go; otherwise it goes on when this process ends.  PTRACE_ATTACH is never used.
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
        try:
            ptrace.seize(tid)
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
        """Detach; returns for how many seconds the thread stood."""
        # it may have died, or not stop: the kernel detaches when this process ends
        with contextlib.suppress(OSError):
            ptrace.detach(self.tid)
        return time.monotonic() - self.since

    def _stop(self) -> None:
        self.since = time.monotonic()
        ptrace.interrupt(self.tid)
        status = self._wait_for_stop()
        while not is_event_stop(status):  # a signal for the target came first
            ptrace.resume(self.tid, os.WSTOPSIG(status))
            status = self._wait_for_stop()
        if os.WSTOPSIG(status) != signal.SIGTRAP:
            raise GroupStopped

    def _wait_for_stop(self) -> int:
        status = self.wait(STOP_SECONDS)
        if status is None:
            raise CannotStop(f"thread {self.tid} does not stop (uninterruptible)")
        self.since = time.monotonic()
        return status


def is_event_stop(status: int) -> bool:
    return status >> 16 == ptrace.EVENT_STOP


def is_syscall_stop(status: int) -> bool:
    return os.WSTOPSIG(status) == SYSCALL_TRAP
