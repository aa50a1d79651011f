"""Run a short change while no other thread can run Python, once no thread is in code that it would disturb.

Used where torch iterates over a dict that we must change.  Invariant: no other thread gets the GIL between
the check of the other threads' frames and the end of the change.
"""

from __future__ import annotations

import sys
import time
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from . import frame_locals
from .frames import frames_of_others, outward

_changing = allocate_lock()
_LONG_INTERVAL_S = 1.0  # a switch interval that cannot elapse during a few microseconds


def exclusively(change: Callable[[], None], disturbs: Callable[[Any], bool], patience_s: float = 2.0) -> bool:
    """Call change() when no other thread's stack has a frame whose code `disturbs`; False if that never happened.

    A thread that waits for the GIL asks for it one switch interval after the last switch.  The sleep causes
    that switch; the few microseconds after it are ours, and the long interval covers a preempted core.
    """
    end = time.monotonic() + patience_s
    frames_of_others()  # what these find out the first time is known from now on: they read files, so others would run
    frame_locals.read(sys._getframe())
    while time.monotonic() < end:
        time.sleep(0.0005)
        if not _changing.acquire(False):
            continue  # this call would take the long interval for the job's own and restore that one
        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(_LONG_INTERVAL_S)
            if not any(
                disturbs(each.f_code) for top in frames_of_others(rested=True).values() for each in outward(top)
            ):
                change()
                return True
        finally:
            sys.setswitchinterval(interval)
            _changing.release()
    return False
