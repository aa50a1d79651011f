"""Who uses the cores of this machine, and how much a thread does, over a short time.

Called by diagnoses, and by the process beside a job that is looked at from elsewhere.  Reads /proc with the standard
library; what may not be read is absent.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .process_status import thread_ids, thread_status
from .processes import process, read_stat, trees

TICKS = os.sysconf("SC_CLK_TCK")  # in a second
# x86_64's numbers of nanosleep, clock_nanosleep; select, pselect6; read
_NAPS, _SELECTS, _READ = (35, 230), (23, 270), 0
_MOVED = ("rchar", "wchar", "read_bytes", "write_bytes")


class Used(NamedTuple):
    """Processor time of a thread, and how often it has gone to sleep, so far; turns: None where that is not counted."""

    tid: int
    cpu_s: float
    turns: int | None


class Load(NamedTuple):
    """What a process has done so far: one of its threads, the processes below it, and the bytes that it has read and
    written, also in a call that goes on; 0 where those are not ours to see.  at: when this was read, or came
    (monotonic); sleeps: whether the thread waits for nothing but time or standard input, as far as that can be seen;
    waited_s: how long that thread has been ready to run and has waited for a core."""

    used: Used | None
    below_s: float
    moved_bytes: int
    at: float
    sleeps: bool = False
    waited_s: float = 0.0

    def told(self) -> dict[str, Any]:
        """As it travels."""
        used = None if self.used is None else [*self.used]
        names = ("below_s", "moved_bytes", "sleeps", "waited_s")
        return {"used": used, **{name: getattr(self, name) for name in names}}

    @classmethod
    def of(cls, told: Mapping[str, Any], at: float) -> Load:
        """What has travelled, and came at that moment."""
        used = None if told["used"] is None else Used(*told["used"])
        more = told.get("sleeps", False), told.get("waited_s", 0.0)  # an older server does not know them
        return cls(used, told["below_s"], told["moved_bytes"], at, *more)


def loads(threads: Mapping[int, int | None]) -> dict[int, Load]:
    """Of these processes, each with the native id of one of its threads, None for the main one; one look at /proc."""
    return {pid: _load(pid, below[1:], used(pid, threads[pid])) for pid, below in trees(threads).items()}


def _load(pid: int, below: Sequence[int], of_thread: Used | None) -> Load:
    below_s, moved_bytes = sum(map(_process_s, below)), _moved_bytes(pid)
    if of_thread is None:
        return Load(None, below_s, moved_bytes, time.monotonic())
    thread = pid, of_thread.tid
    return Load(of_thread, below_s, moved_bytes, time.monotonic(), _sleeps(*thread), _waited_s(*thread))


def _sleeps(pid: int, tid: int) -> bool:
    """By the call of the kernel's that it is in: time.sleep() of Python 3.10 selects among no descriptors, and input()
    at a terminal among the first one."""
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall", encoding="ascii") as file:
            number, first, *_ = (int(word, 0) for word in file.read().split())
    except (OSError, ValueError):  # not ours to see; it runs, or is in no call
        return False
    is_time_or_input = number in _NAPS or (number in _SELECTS and first <= 1) or (number, first) == (_READ, 0)
    return is_time_or_input and os.uname().machine == "x86_64"


def used(pid: int, native_id: int | None) -> Used | None:
    """None if the process has ended."""
    try:
        tid = pid if native_id is None else thread_ids(pid).get(native_id, pid)
        return Used(tid, ran_s(pid, tid), thread_status(pid, tid).turns)
    except OSError:
        return None


def _process_s(pid: int) -> float:
    """Processor time of a process so far."""
    try:
        return read_stat(pid).cpu_ticks / TICKS
    except OSError:
        return 0.0


def _moved_bytes(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:
        counts = (line.partition(":") for line in file)
        return sum(int(value) for name, _, value in counts if name in _MOVED)
    return 0


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
        before, begun = sum(_scheduled_ns(pid, tid)), time.monotonic_ns()
        time.sleep(look_s)
        after, took_ns = sum(_scheduled_ns(pid, tid)), time.monotonic_ns() - begun
    except (OSError, LookupError, ValueError):
        return None
    return min(1.0, max(0.0, 1 - (after - before) / took_ns))


def _waited_s(pid: int, tid: int) -> float:
    """0 if it has ended, or the kernel does not count that."""
    with contextlib.suppress(OSError, LookupError, ValueError):
        return _scheduled_ns(pid, tid)[1] / 1e9
    return 0.0


def _scheduled_ns(pid: int, tid: int) -> list[int]:
    """Time on a core, and time waiting for one."""
    with open(f"/proc/{pid}/task/{tid}/schedstat") as file:
        return [*map(int, file.read().split()[:2])]
