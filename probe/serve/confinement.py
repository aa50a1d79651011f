"""What a server and its keeper give up, so that neither can harm the job, and a fault in one stays in it.

Called at their start, and by the other processes beside a job: those that answer, read stacks, profile and record.
Linux only, standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from typing import Any

from ..host import cgroups

_PR_SET_NAME = 15
_OOM_FIRST = "1000"  # ends before the training does, where the kernel ends a process and not a cgroup
_LEAST_MEMORY = 1 << 30


def memory_share() -> int:
    """A quarter of the memory that this process's cgroup may have, or the machine; the most that one of ours takes."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(_LEAST_MEMORY, min(most, cgroups.memory_limit() or most) // 4)


def spare_memory(share: int, held: int = 0) -> int:
    """What a process may take of its share, where it has so much already: at most half of what is left, if the kernel
    would not end it first but its whole cgroup, which the training may be in."""
    left = cgroups.memory_left()
    return share if left is None else min(share, (left + held) // 2)


def end_first() -> None:
    """Be ended before the training where memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_FIRST)


def confine(name: str, memory: int = 0) -> None:
    """Be ended first when memory runs out, write no core file, and have this name in ps and top.

    memory: the most bytes of addresses to take; a client can make libzmq ask for any amount.
    """
    end_first()
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # 1: no core, not even to a pipe; 0 is for files alone
    if memory:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (memory if most < 0 else min(memory, most), most))
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def become(config: dict[str, Any]) -> None:
    """Run as the job's user from now on.  Nothing to do for that user."""
    if os.geteuid() == 0 and config["uid"] != 0:
        os.setgroups([config["gid"]])
        os.setresgid(config["gid"], config["gid"], config["gid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
