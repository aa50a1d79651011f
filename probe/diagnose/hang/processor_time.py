"""How much of a core a thread uses, and how long it works each time that it wakes.

Called by looks.py at two moments.  Invariant: what the kernel does not say is None.
"""

from __future__ import annotations

import os
import time

from ...host.processor_use import Used

_POLLS, _NAP_S = 10, 0.01


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
