"""Calls of the system that some Pythons cannot make: built for an old C library, as conda's and uv's are.

Called by attach, and by whatever starts a process beside a job.
"""

from __future__ import annotations

import ctypes
import os

_CLOEXEC = 1  # of linux/memfd.h
_MEMFD_X86_64, _MEMFD_OTHERS, _PIDFD = 319, 279, 434  # their numbers


def memfd_create(name: str) -> int:
    """A descriptor of a file in memory, which programs that we start do not get.  Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, _CLOEXEC)
    return _call(_MEMFD_X86_64 if os.uname().machine == "x86_64" else _MEMFD_OTHERS, name.encode(), _CLOEXEC)


def pidfd_open(pid: int) -> int:
    """A descriptor that can be read once the process has ended.  Raises OSError."""
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _call(_PIDFD, pid, 0)


def _call(number: int, *arguments: int | bytes) -> int:
    result = int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
