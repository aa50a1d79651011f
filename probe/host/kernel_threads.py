"""The threads of a process as the kernel knows them, for a process whose Python cannot answer.

Called by the verb stack and by attach.  Reads /proc only; waits_in is "" if the kernel does not say it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

_STATES = {
    "R": "running",
    "S": "asleep",
    "D": "asleep, not to be interrupted",
    "T": "stopped",
    "t": "held by a debugger",
}


@dataclass(frozen=True)
class NativeThread:
    """state: the kernel's letter; waits_in: its function, as in /proc/PID/task/TID/wchan."""

    tid: int
    name: str
    state: str
    waits_in: str

    def __str__(self) -> str:
        told = _STATES.get(self.state, f"in state {self.state}")
        return f"{told} in {self.waits_in}" if self.waits_in and self.state in "SD" else told


def native_threads(pid: int) -> list[NativeThread]:
    """The main thread first; [] if the process has ended."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, IndexError):
                found.append(_thread(pid, int(name)))
    return sorted(found, key=lambda thread: (thread.tid != pid, thread.tid))


def _thread(pid: int, tid: int) -> NativeThread:
    folder = f"/proc/{pid}/task/{tid}"
    with open(f"{folder}/stat") as file:
        name, _, fields = file.read().partition("(")[2].rpartition(")")
    waits_in = ""
    with contextlib.suppress(OSError), open(f"{folder}/wchan") as file:
        waits_in = file.read().strip("0\n")
    return NativeThread(tid, name, fields.split()[0], waits_in)


def told_together(threads: Sequence[NativeThread]) -> list[str]:
    """One line for all threads of the same name and state: `python (4250): asleep in hrtimer_nanosleep`."""
    same: dict[tuple[str, str], list[int]] = {}
    for each in threads:
        same.setdefault((each.name, str(each)), []).append(each.tid)
    return [
        f"{name} ({tids[0] if len(tids) == 1 else f'{len(tids)} threads'}): {told}"
        for (name, told), tids in same.items()
    ]
