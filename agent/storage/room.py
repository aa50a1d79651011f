"""Whether the limits of the process leave room for the agent, which must not take the last descriptors of a job: it
fails without.

Called before anything of the agent is made.
"""

from __future__ import annotations

import errno
import os

from ...streams import LOG_BYTES
from .memory import UNLIMITED, soft_limit, usual_or_reserved

NEEDED = 32  # 12 for the agent, as many for what it opens on demand and for readers, and some for the job


class NoDescriptors(OSError):
    """The process is too close to its limit."""

    probe_code = "no-descriptors"


class SmallFiles(OSError):
    """The process may not make a file as large as those of the agent."""

    probe_code = "file-size"


def check_file_size() -> None:
    """Raises SmallFiles.  It would bring SIGXFSZ, which Python ignores, but not every program around it."""
    try:
        limit = soft_limit("Max file size")
    except OSError:
        return  # a sandbox without /proc
    needed = usual_or_reserved(LOG_BYTES)  # no stream takes more
    if limit != UNLIMITED and int(limit) < needed:
        raise SmallFiles(f"its files may take {limit} bytes, and the agent needs {needed}")


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
