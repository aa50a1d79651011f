"""Whether the process has descriptors for the agent: it must not take the last ones of a job, which fails without.

Called before anything of the agent is made.
"""

from __future__ import annotations

import errno
import os

from .memory import UNLIMITED, soft_limit

NEEDED = 32  # 12 for the agent, as many for what it opens on demand and for readers, and some for the job


class NoDescriptors(OSError):
    """The process is too close to its limit."""

    probe_code = "no-descriptors"


def check_descriptors() -> None:
    """Raises NoDescriptors."""
    try:
        limit = soft_limit("Max open files")
        left = NEEDED if limit == UNLIMITED else int(limit) - _open_below(int(limit))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise NoDescriptors(error.strerror) from None
        return  # a sandbox without /proc
    if left < NEEDED:
        raise NoDescriptors(f"{left} of its {limit} descriptors are left, and the agent needs {NEEDED}")


def _open_below(limit: int) -> int:
    """Others were opened before the limit was lowered."""
    return sum(int(number) < limit for number in os.listdir("/proc/self/fd"))
