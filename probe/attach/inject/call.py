"""A function call made by a stopped thread, as if a signal handler had run there.

Used by `injection`.  A kernel-format signal frame lies below the thread's red zone; the called function returns into
libc's getpid, at whose system call we meet the thread again, and from there into the signal trampoline.  So at every
moment the thread returns by itself to where it was: if this process is killed, the call ends on its own and
rt_sigreturn restores registers, extended state and signal mask.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from . import ptrace
from .target import Target
from .tracee import Tracee, is_event_stop, is_syscall_stop

CALL_SECONDS = 1.0  # mmap and pthread_create take microseconds; more means waiting for a lock, or swapping
GETPID_BYTES = 24  # within which its system call lies
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS)
ALL_BUT_FAULTS = (1 << 64) - 1 & ~sum(1 << (number - 1) for number in _FAULTS)


class CallFailed(Exception):
    """The function did not return.  The thread was put back, or goes on by itself."""


class RemoteCalls:
    """Calls on one stopped thread; `close` lets it go.  values: what their system calls returned, by number."""

    def __init__(self, target: Target, thread: Tracee) -> None:
        self._target = target
        self._thread = thread
        self._runs_on = False
        self.values: dict[int, int] = {}
        architecture, tid = target.architecture, thread.tid
        self._mask = ptrace.get_signal_mask(tid)
        self._resumed = architecture.resumed(thread.registers)
        getpid = target.symbols["getpid"]  # twice for the alignment of the stack; the second is harmless
        self._frame = architecture.signal_frame(
            self._resumed, thread.extended, self._mask, (getpid, getpid, target.restorer)
        )
        target.memory.write(self._frame.stack, self._frame.data, tid)

    @property
    def scratch(self) -> int:
        return self._frame.scratch

    def write(self, address: int, data: bytes) -> None:
        self._target.memory.write(address, data, self._thread.tid)

    def call(self, function: str, *arguments: int, until: int | None = None, seconds: float = CALL_SECONDS) -> int:
        """Run the function to its end, or to the end of system call `until`, and return the last system call's value.
        Raises CallFailed."""
        entry, getpid = self._target.symbols[function], self._target.symbols["getpid"]
        architecture = self._target.architecture
        self._thread.set_registers(architecture.calling(self._resumed, entry, list(arguments), self._frame.stack))
        # no handler of the target runs inside our calls; only now, when the thread would restore its own mask
        ptrace.set_signal_mask(self._thread.tid, ALL_BUT_FAULTS)
        deadline = time.monotonic() + seconds
        number, returned = -1, False
        while True:
            stop = self._next_syscall_stop(function, deadline)
            if stop.entering:
                number = stop.number
                returned = returned or getpid < stop.pc <= getpid + GETPID_BYTES
                continue
            self.values[number] = stop.value
            if number == until or returned:
                return stop.value

    def close(self) -> float:
        """Put the thread back to where it was; returns for how many seconds it stood."""
        if not self._runs_on:
            with contextlib.suppress(ProcessLookupError):  # killed meanwhile
                # the registers last: until then the thread would restore by itself what is not restored yet
                ptrace.set_signal_mask(self._thread.tid, self._mask)
                ptrace.set_regset(self._thread.tid, self._target.architecture.extended_regset, self._thread.extended)
                self._thread.set_registers(self._resumed)
        return self._thread.let_go()

    def _next_syscall_stop(self, function: str, deadline: float) -> ptrace.SyscallStop:
        while True:
            ptrace.resume_to_syscall(self._thread.tid)
            status = self._thread.wait(max(0.0, deadline - time.monotonic()))
            if status is None:
                self._give_up(function)
            elif is_syscall_stop(status):
                return ptrace.syscall_stop(self._thread.tid)
            elif not is_event_stop(status):  # a fault inside the call: everything else is blocked
                place = self._target.place(self._thread.get_registers()[self._target.architecture.pc])
                raise CallFailed(f"{function} ended in signal {os.WSTOPSIG(status)} in {place}; rolled back")

    def _give_up(self, function: str) -> None:
        """In a lock it may wait for a lock of this very thread, so the thread is put back; anywhere else
        putting it back would leave libc's work half done, so the call is left to end by itself."""
        ptrace.interrupt(self._thread.tid)
        stopped = self._thread.wait(CALL_SECONDS) is not None
        registers = self._thread.get_registers() if stopped else {}
        waits = stopped and self._target.architecture.syscall(registers) == self._target.architecture.calls.futex
        self._runs_on = not waits
        fate = "rolled back" if waits else "left to end by itself"
        raise CallFailed(f"{function} did not return in time; {fate}")
