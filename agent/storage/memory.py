"""Named memory that other processes can read through /proc/<pid>/fd; rows, log and header each use it.

Each piece costs one descriptor: mmap keeps a duplicate of the one it is given (by default, on every version), so the
original is closed.
"""

from __future__ import annotations

import mmap
import os

_ADD_SEALS, _KEEP_SIZE, _NO_WRITING, _NO_MORE_SEALS = 1033, 0x2 | 0x4, 0x10, 0x1  # of linux/fcntl.h


def shared_memory(name: str, size: int) -> mmap.mmap:
    """A zeroed mapping of a memfd.  Pages cost memory once written; close() frees everything.

    Nobody else can write to it, or make it shorter, after which a write here would end the process (SIGBUS).
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        mapped = mmap.mmap(fd, size)
        _seal(fd)
        return mapped
    finally:
        os.close(fd)


def _seal(fd: int) -> None:
    try:
        import fcntl  # an extension module: where it is missing, there are no seals
    except ImportError:
        return
    for seals in (_KEEP_SIZE | _NO_WRITING | _NO_MORE_SEALS, _KEEP_SIZE | _NO_MORE_SEALS):
        try:
            fcntl.fcntl(fd, _ADD_SEALS, seals)
            return
        except OSError:  # Linux before 5.1 cannot forbid writing alone
            continue
