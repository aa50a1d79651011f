"""A named piece of memory that other processes can read through /proc/<pid>/fd; who holds one: rows, log, header.

One descriptor each: mmap keeps a duplicate of what it is given (by default, on every version), so the first is closed.
"""

from __future__ import annotations

import mmap
import os


def shared_memory(name: str, size: int) -> mmap.mmap:
    """A zeroed mapping of a memfd; pages cost memory once they are written.  close() gives all of it back."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
