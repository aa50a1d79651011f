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

_PR_SET_NAME = 15
_OOM_FIRST = "1000"  # ends before the training does
_LEAST_MEMORY = 1 << 30


def memory_share() -> int:
    """A quarter of the memory that this process's cgroup may have, or the machine; the most that one of ours takes."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, StopIteration):  # an older kind of cgroup, or "max"
        with open("/proc/self/cgroup") as file:
            path = next(line for line in file if line.startswith("0::")).strip().partition("::")[2]
        for folder in (f"/sys/fs/cgroup{path}", "/sys/fs/cgroup"):
            with contextlib.suppress(OSError, ValueError), open(f"{folder}/memory.max") as file:
                most = min(most, int(file.read()))
    return max(_LEAST_MEMORY, most // 4)


def confine(name: str, memory: int = 0) -> None:
    """Be ended first when memory runs out, write no core file, and have this name in ps and top.

    memory: the most bytes of addresses to take; a client can make libzmq ask for any amount.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_FIRST)
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
