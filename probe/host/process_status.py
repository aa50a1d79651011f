"""/proc/PID/status, the fields that attaching asks for.

Used by `target`, `refusals` and `safepoint`.  Works for threads as well as for processes.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """Ids are effective ones, in our namespaces; own_id is the id as its own namespace has it.
    blocked, caught: signal masks; permitted, effective: capabilities; threads_features: of the processor."""

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


def read_status(pid: int) -> Status:
    """Raises OSError when there is no such process, or none that we may see."""
    return _parse(_lines(f"/proc/{pid}/status"))


def thread_status(pid: int, tid: int) -> Status:
    """Raises OSError when the thread ended."""
    return _parse(_lines(f"/proc/{pid}/task/{tid}/status"))


def has_thread(pid: int, own_id: int) -> bool:
    """own_id: as the process's own namespace has it."""
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            if thread_status(pid, int(tid)).own_id == own_id:
                return True
    return False


def my_status() -> Status:
    return _parse(_lines("/proc/self/status"))


def _parse(fields: dict[str, str]) -> Status:
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
    )


def _lines(path: str) -> dict[str, str]:
    with open(path, errors="replace") as lines:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
