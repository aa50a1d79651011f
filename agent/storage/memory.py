"""Named memory that other processes can read through /proc/<pid>/fd; rows, log and header each use it.

Each piece costs one descriptor: mmap keeps a duplicate of the one it is given (by default, on every version), so the
original is closed.
"""

from __future__ import annotations

import mmap
import os


def shared_memory(name: str, size: int) -> mmap.mmap:
    """A zeroed mapping of a memfd.  Pages cost memory once written; close() frees everything."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
