"""In which order to try the threads of the target.

Called by `safepoint`.  Read from /proc, so it may be out of date when a thread is stopped; whether a thread
is fit is judged only then.
"""

from __future__ import annotations

import os

from .target import Target

KERNEL_FLAGS = 0x00000010 | 0x00200000  # PF_IO_WORKER (io_uring), PF_KTHREAD
FUTEX_OPERATION = 0x7F
BITSET_WAITS = (9, 11)  # FUTEX_WAIT_BITSET, FUTEX_WAIT_REQUEUE_PI: conditions and semaphores, never locks of libc


def candidates(target: Target) -> list[int]:
    """Thread ids, the best first: asleep in a call that a stop does not disturb, not the main thread."""
    ranked = []
    for tid in map(int, os.listdir(f"/proc/{target.pid}/task")):
        place = _place_in_line(target, tid)
        if place is not None:
            ranked.append((place, tid == target.pid, tid))
    return [tid for _, _, tid in sorted(ranked)]


def _place_in_line(target: Target, tid: int) -> int | None:
    calls = target.architecture.calls
    try:
        state, flags = _state(target.pid, tid)
        number, arguments = _syscall(target.pid, tid)
    except (OSError, ValueError, IndexError):
        return None
    if state in "ZXD" or flags & KERNEL_FLAGS:
        return None
    if state != "S" or number is None:
        return 2  # running: judged once it stands
    if number == calls.futex and arguments[1] & FUTEX_OPERATION not in BITSET_WAITS:
        return 3
    if number in calls.restartable:
        return 0
    return 1 if number in calls.waiting else 4


def _state(pid: int, tid: int) -> tuple[str, int]:
    with open(f"/proc/{pid}/task/{tid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return fields[0], int(fields[6])


def _syscall(pid: int, tid: int) -> tuple[int | None, list[int]]:
    with open(f"/proc/{pid}/task/{tid}/syscall") as file:
        fields = file.read().split()
    if not fields[0].isdigit():
        return None, []
    return int(fields[0]), [int(field, 16) for field in fields[1:7]]
