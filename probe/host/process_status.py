"""What the kernel says about a process and about each of its threads: status, times, and what a thread waits in.

Used by `processes`, for attaching, and for processes whose Python cannot answer.  Reads /proc only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..text import grouped
from .processes import read_stat

_STATES = {
    "R": "running",
    "S": "asleep",
    "D": "asleep, not to be interrupted",
    "T": "stopped",
    "t": "held by a debugger",
}


@dataclass(frozen=True)
class Status:
    """Ids are effective ones, in our namespaces; own_id is the id as its own namespace has it.
    blocked, caught: signal masks; permitted, effective: capabilities; shadow_stack: of the processor; turns: how
    often the thread has gone to sleep, if the kernel says so."""

    name: str
    state: str
    process: int
    own_id: int
    tracer: int
    uid: int
    gid: int
    blocked: int
    caught: int
    permitted: int
    effective: int
    seccomp: bool
    shadow_stack: bool
    turns: int | None = None


def read_status(pid: int) -> Status:
    """Raises OSError when there is no such process, or none that we may see."""
    return _status(str(pid))


def thread_status(pid: int, tid: int) -> Status:
    """Raises OSError when the thread ended."""
    return _status(f"{pid}/task/{tid}")


def thread_ids(pid: int) -> dict[int, int]:
    """Id in the process's own namespace -> id in ours, of each thread.  Raises OSError when the process has ended."""
    found = {}
    for tid in map(int, os.listdir(f"/proc/{pid}/task")):
        with contextlib.suppress(OSError):
            found[thread_status(pid, tid).own_id] = tid
    return found


def my_status() -> Status:
    return _status("self")


def _status(folder: str) -> Status:
    with open(f"/proc/{folder}/status", errors="replace") as lines:
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Status(
        name=fields["Name"],
        state=fields["State"][0],
        process=int(fields["Tgid"]),
        own_id=int(fields.get("NSpid", fields["Pid"]).split()[-1]),
        tracer=int(fields["TracerPid"]),
        uid=int(fields["Uid"].split()[1]),
        gid=int(fields["Gid"].split()[1]),
        blocked=int(fields["SigBlk"], 16),
        caught=int(fields["SigCgt"], 16),
        permitted=int(fields["CapPrm"], 16),
        effective=int(fields["CapEff"], 16),
        seccomp=fields.get("Seccomp", "0") != "0",
        shadow_stack="shstk" in fields.get("x86_Thread_features", ""),
        turns=int(turns) if (turns := fields.get("voluntary_ctxt_switches")) is not None else None,
    )


@dataclass(frozen=True)
class NativeThread:
    """state: the kernel's letter; waits_in: its function (/proc/PID/task/TID/wchan), "" if it does not say."""

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
            with contextlib.suppress(OSError):
                found.append(_thread(pid, int(name)))
    return sorted(found, key=lambda thread: (thread.tid != pid, thread.tid))


def _thread(pid: int, tid: int) -> NativeThread:
    stat, waits_in = read_stat(pid, tid), ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{tid}/wchan") as file:
        waits_in = file.read().strip("0\n")
    return NativeThread(tid, stat.name, stat.state, waits_in)


def told_together(threads: Sequence[NativeThread]) -> list[str]:
    """One line for all threads of the same name and state: `python (4250): asleep in hrtimer_nanosleep`."""
    same = grouped(((each.name, str(each)), each.tid) for each in threads)
    return [
        f"{name} ({tids[0] if len(tids) == 1 else f'{len(tids)} threads'}): {told}"
        for (name, told), tids in same.items()
    ]
