"""Does everything once that is done while a thread stands, on a thread that is not traced.

Called by `injection` in the tracing process.  A process that was just forked copies each page of Python's that it
touches first; without the warm-up a third of the time for which the thread stands would go into that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from . import ptrace
from .safepoint import check_fit
from .target import Target
from .tracee import GENERAL_REGSET, Tracee

_GENERAL, _EXTENDED = bytes(27 * 8), bytes(2696)  # as large as registers and extended state usually are


class _Untraced(Tracee):
    """A thread that is not traced: every ptrace request about it fails with ESRCH."""

    def __init__(self, target: Target) -> None:
        self.tid, self._architecture, self.since = target.pid, target.architecture, 0.0
        self.registers, self.extended = target.architecture.unpack(_GENERAL), _EXTENDED


def warm_up(target: Target) -> None:
    """Takes some 0.5 ms; does not touch the target, raises nothing."""
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
    ]
    for step in steps:
        with contextlib.suppress(Exception):
            step()
