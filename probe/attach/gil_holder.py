"""Which thread holds the GIL of a process, found by way of another thread that waits for it.

Called by `delivery` when its own thread gets no turn, and by `probe hang` and `probe stack` for a rank that does not
answer.  Reads /proc and the process's memory, stops nothing.  A thread that waits for the GIL sleeps in a condition
variable inside the GIL, next to the GIL's last holder, so neither symbols nor tables of versions are needed.
CPython 3.10 to 3.14 on glibc.
"""

from __future__ import annotations

import contextlib
import struct
import time

from ..errors import AttachError
from ..host.process_status import native_threads, thread_ids
from .inject.safepoint import read_syscall
from .inject.target import Target, examine

_BEFORE = 24  # bytes from last_holder over locked and switch_number to the condition variable (pycore_gil.h)
_SIGNALS = (40, 32)  # offsets of __g_signals, in which one sleeps, in pthread_cond_t: up to glibc 2.40, and since
_STATE_BYTES = 384  # of a PyThreadState, its thread_id among them
_LOOKS, _PAUSE_S = 20, 0.001  # the waiting thread wakes up for a moment every 5 ms


def describe_gil_holder(pid: int) -> str:
    """`its main thread, asleep in hrtimer_nanosleep, holds the GIL`; "" where the holder cannot be found.

    Takes some milliseconds; raises nothing.
    """
    with contextlib.suppress(AttachError, OSError), contextlib.closing(examine(pid)) as target:
        return describe_holder_in(target)
    return ""


def describe_holder_in(target: Target) -> str:
    """The same for a target that is already examined."""
    holder = _find_holder(target)
    for thread in native_threads(target.pid):
        if thread.tid == holder:
            which = "its main thread" if holder == target.pid else f"its thread {holder} ({thread.name})"
            return f"{which}, {thread}, holds the GIL"
    return ""


def _find_holder(target: Target) -> int | None:
    """tid of the thread that holds the GIL while another one waits for it."""
    for _ in range(_LOOKS):
        tids = thread_ids(target.pid)
        for tid in tids.values():
            for condition in _conditions(target, tid):
                with contextlib.suppress(OSError, OverflowError):
                    if holder := _holder(target, condition, tids):
                        return holder
        time.sleep(_PAUSE_S)
    return None


def _conditions(target: Target, tid: int) -> list[int]:
    """Where the condition variable begins in which the thread sleeps, if it sleeps in one: an address per glibc."""
    try:
        number, arguments = read_syscall(target.pid, tid)
    except (OSError, ValueError, IndexError):
        return []
    return [(arguments[0] - offset) & ~7 for offset in _SIGNALS] if number == target.architecture.calls.futex else []


def _holder(target: Target, condition: int, tids: dict[int, int]) -> int | None:
    """The holder that the GIL around this condition variable names, if it is a GIL and held."""
    state, locked = struct.unpack("<QI", target.memory.read(condition - _BEFORE, 12))
    if locked != 1:
        return None
    for (word,) in struct.iter_unpack("<Q", target.memory.read(state, _STATE_BYTES)):
        with contextlib.suppress(OSError, OverflowError):
            if word and target.architecture.is_thread_block(word, target.memory.read(word, 8)):
                own_id = int.from_bytes(target.memory.read(word + target.thread_id_offset, 4), "little")
                return tids.get(own_id)
    return None
