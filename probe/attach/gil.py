"""Which thread holds the GIL of a process, found from another one that waits for it.

Called by `delivery` when its own thread gets no turn, by `probe hang` and `probe stack` for a rank that does not
answer.  Reads /proc and the process's memory, stops nothing.  A thread that waits for the GIL sleeps in a condition
variable that lies inside the GIL, next to its last holder: neither symbols nor tables of versions are needed.
CPython 3.10 to 3.14 on glibc.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time

from ..errors import AttachError
from ..host.kernel_threads import native_threads
from ..host.process_status import thread_status
from .inject.target import Target, examine

_BEFORE = 24  # bytes from last_holder over locked and switch_number to the condition variable (pycore_gil.h)
_SIGNALS = (40, 32)  # where in pthread_cond_t one sleeps: __g_signals, until glibc 2.40 and since
_STATE_BYTES = 384  # of a PyThreadState, among them its thread_id
_LOOKS, _PAUSE_S = 20, 0.001  # the waiting thread wakes up every 5 ms for a moment


def gil_told(pid: int) -> str:
    """`its main thread, asleep in hrtimer_nanosleep, holds the GIL`; "" where that cannot be told.

    Some milliseconds; nothing raised.
    """
    with contextlib.suppress(AttachError, OSError), contextlib.closing(examine(pid)) as target:
        return told_of(target)
    return ""


def told_of(target: Target) -> str:
    """`gil_told` of a target that is examined already."""
    holder = holder_of_gil(target)
    for thread in native_threads(target.pid):
        if thread.tid == holder:
            which = "its main thread" if holder == target.pid else f"its thread {holder} ({thread.name})"
            return f"{which}, {thread}, holds the GIL"
    return ""


def holder_of_gil(target: Target) -> int | None:
    """tid of the thread that holds it while another one waits for it; None where that cannot be told."""
    for _ in range(_LOOKS):
        tids = _tids(target.pid)
        for tid in tids.values():
            for condition in _conditions(target, tid):
                with contextlib.suppress(OSError, OverflowError):
                    if holder := _holder(target, condition, tids):
                        return holder
        time.sleep(_PAUSE_S)
    return None


def _tids(pid: int) -> dict[int, int]:
    """Of each thread, its id in its own namespace and in ours."""
    tids = {}
    for name in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            tids[thread_status(pid, int(name)).own_id] = int(name)
    return tids


def _conditions(target: Target, tid: int) -> list[int]:
    """Where the condition variable begins in which the thread sleeps, if it sleeps in one."""
    try:
        with open(f"/proc/{target.pid}/task/{tid}/syscall") as file:
            fields = file.read().split()
    except OSError:
        return []
    if fields[:1] != [str(target.architecture.calls.futex)]:
        return []
    return [(int(fields[1], 16) - offset) & ~7 for offset in _SIGNALS]


def _holder(target: Target, condition: int, tids: dict[int, int]) -> int | None:
    """By the GIL around that condition variable, if it is one that is held."""
    state, locked = struct.unpack("<QI", target.memory.read(condition - _BEFORE, 12))
    if locked != 1:
        return None
    for (word,) in struct.iter_unpack("<Q", target.memory.read(state, _STATE_BYTES)):
        with contextlib.suppress(OSError, OverflowError):
            if word and target.architecture.is_thread_block(word, target.memory.read(word, 8)):
                own_id = int.from_bytes(target.memory.read(word + target.thread_id_offset, 4), "little")
                return tids.get(own_id)
    return None
