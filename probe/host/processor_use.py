"""Who uses the cores of this machine, and how much a thread does, over a short time.

Called by diagnoses.  Reads /proc with the standard library; what may not be read is absent.
"""

from __future__ import annotations

import contextlib
import os
import time

from .processes import process, read_stat

TICKS = os.sysconf("SC_CLK_TCK")  # in a second


def cores_used(look_s: float) -> dict[int, float]:
    """pid -> cores that it uses in the next `look_s` seconds, of every process that runs in this time."""
    before, begun = _ticks(), time.monotonic()
    time.sleep(look_s)
    after, took_s = _ticks(), time.monotonic() - begun
    return {pid: (ticks - before.get(pid, ticks)) / TICKS / took_s for pid, ticks in after.items()}


def _ticks() -> dict[int, int]:
    found = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            found[pid] = read_stat(pid).cpu_ticks
    return found


def program_of(pid: int) -> str:
    """Its program and what that runs, without folders: `python train.py`; '' if it has ended."""
    known = process(pid)
    words = known.command.split() if known is not None else []
    first = next((word for word in words[1:] if not word.startswith("-")), "")
    return " ".join(os.path.basename(word) for word in (*words[:1], first) if word) or (known.name if known else "")


def ran_s(pid: int, tid: int) -> float:
    """Processor time of a thread so far: to the ns, or to the tick where the kernel does not count that.

    Raises OSError when it has ended.
    """
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9
    except (FileNotFoundError, LookupError, ValueError):
        return read_stat(pid, tid).cpu_ticks / TICKS


def blocked(pid: int, tid: int, look_s: float) -> float | None:
    """Share of the next `look_s` seconds in which a thread neither runs nor waits for a core; None if unknown."""
    try:
        before, begun = _scheduled_ns(pid, tid), time.monotonic_ns()
        time.sleep(look_s)
        after, took_ns = _scheduled_ns(pid, tid), time.monotonic_ns() - begun
    except (OSError, LookupError, ValueError):
        return None
    return min(1.0, max(0.0, 1 - (after - before) / took_ns))


def _scheduled_ns(pid: int, tid: int) -> int:
    """Time on a core and time waiting for one."""
    with open(f"/proc/{pid}/task/{tid}/schedstat") as file:
        return sum(map(int, file.read().split()[:2]))
