"""How much of a core a thread uses, and how long it works each time that it wakes.

Called by looks.py at two moments.  Invariant: what the kernel does not say is None.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from ...host.process_status import thread_ids, thread_status
from ...host.processor_use import ran_s
from ...snapshot.stacks import Thread

_POLLS, _NAP_S = 10, 0.01


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
        return Used(tid, ran_s(pid, tid), thread_status(pid, tid).turns)
    except OSError:
        return None


def simplest_poll_s() -> float:
    """The least processor time of a Python loop each time that it wakes and finds nothing, here.  Takes 0.1 s."""
    took_s = []
    for _ in range(_POLLS):
        start_s = time.thread_time()
        os.path.exists("/proc/0")
        time.sleep(_NAP_S)
        took_s.append(time.thread_time() - start_s)
    return min(took_s)


def work(before: Used | None, after: Used | None, between_s: float) -> tuple[float | None, float | None]:
    """Share of a core, and seconds of work each time that the thread woke.  None: not known, or another thread."""
    if before is None or after is None or before.tid != after.tid:
        return None, None
    cpu_s = after.cpu_s - before.cpu_s
    each_s = None
    if before.turns is not None and after.turns is not None:
        each_s = cpu_s / max(1, after.turns - before.turns)
    return cpu_s / max(between_s, 1e-3), each_s
