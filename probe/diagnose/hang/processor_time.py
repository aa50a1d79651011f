"""How much of a core a thread uses, and how long it works each time that it wakes.

Called by looks.py at two moments.  Invariant: what the kernel does not say is None.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...host.process_status import thread_ids, thread_status
from ...host.processes import read_stat
from ...snapshot.stacks import Thread

TICKS = os.sysconf("SC_CLK_TCK")  # in a second


@dataclass(frozen=True)
class Used:
    """Processor time of a thread, and how often it has gone to sleep, so far."""

    tid: int
    cpu_s: float
    turns: int | None


def used(pid: int, thread: Thread | None) -> Used | None:
    """thread None: the main one.  None if the process has ended."""
    other = thread.native_id if thread is not None and not thread.is_main else None
    try:
        tid = pid if other is None else thread_ids(pid).get(other, pid)
        return Used(tid, read_stat(pid, tid).cpu_ticks / TICKS, thread_status(pid, tid).turns)
    except OSError:
        return None


def work(before: Used | None, after: Used | None, between_s: float) -> tuple[float | None, float | None]:
    """Share of a core, and seconds of work each time that the thread woke.  None: not known, or another thread."""
    if before is None or after is None or before.tid != after.tid:
        return None, None
    cpu_s = after.cpu_s - before.cpu_s
    each_s = None
    if before.turns is not None and after.turns is not None:
        each_s = cpu_s / max(1, after.turns - before.turns)
    return cpu_s / max(between_s, 1e-3), each_s
