"""Named memory that other processes can read through /proc/<pid>/fd; rows, log and header each use it.

Each piece costs one descriptor: mmap keeps a duplicate of the one it is given (by default, on every version), so the
original is closed.  Invariant: a write to it never ends the process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator

from .descriptors import is_same
from .memfd import memfd_create

_OVERCOMMIT, _STRICT = "/proc/sys/vm/overcommit_memory", "2"
_LIMITS, UNLIMITED = "/proc/self/limits", "unlimited"
_RESERVED_SHARE = 8  # of the usual size one part in so many, where memory is reserved as a whole
_ADD_SEALS, _KEEP_SIZE, _NO_WRITING, _NO_MORE_SEALS = 1033, 0x2 | 0x4, 0x10, 0x1  # of linux/fcntl.h


class NoRoom(OSError):
    """The kernel grants no more memory."""

    probe_code = "no-memory"


def usual_or_reserved(size: int) -> int:
    """The size to ask for in place of this one: less where all of it costs memory at once, or addresses are limited."""
    return size // _RESERVED_SHARE if _must_reserve() or _addresses_are_limited() else size


def shared_memory(name: str, size: int) -> mmap.mmap:
    """A zeroed mapping of a memfd.  Pages cost memory once written; close() frees everything.

    Nobody else can write to it, or make it shorter, after which a write here would end the process (SIGBUS).  So would
    a write to a page that the kernel does not grant, which it may only deny where it does not overcommit memory: there
    all pages are taken at once.  Raises NoRoom.
    """
    fd = memfd_create(name)
    try:
        os.ftruncate(fd, size)
        if _must_reserve():
            _reserve(fd, size)
        mapped = SharedMemory(fd, size, name)
        _seal(fd)
        return mapped
    finally:
        os.close(fd)


class SharedMemory(mmap.mmap):
    """A mapping whose duplicate of the descriptor is known, so that it is closed only if it still is that."""

    _known: os.stat_result
    _number: int

    def __new__(cls, fd: int, size: int, name: str) -> SharedMemory:
        made = super().__new__(cls, fd, size)
        made._known = os.fstat(fd)
        mine = {each for each in _numbers_of(f"/memfd:{name}") if is_same(each, made._known)}
        made._number = max(mine - {fd}, default=-1)
        return made

    def close(self) -> None:
        """Free the memory; if the job has closed the descriptor and uses its number again, keep it forever."""
        if self._number >= 0 and not self.closed and not is_same(self._number, self._known):
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            return
        super().close()


def _numbers_of(path: str) -> Iterator[int]:
    """Of the descriptors whose path begins so.  No file is asked: a file server that is gone would not answer."""
    with contextlib.suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # others open and close files meanwhile
                if os.readlink(f"/proc/self/fd/{number}").startswith(path):
                    yield int(number)


def _must_reserve() -> bool:
    try:
        with open(_OVERCOMMIT) as file:
            return file.read().strip() == _STRICT
    except OSError:
        return False


def _addresses_are_limited() -> bool:
    """Whether `ulimit -v` is set, as batch systems do: what we map is then missing to the job."""
    try:
        return soft_limit("Max address space") != UNLIMITED
    except OSError:
        return False


def soft_limit(name: str) -> str:
    """Of this process, as the kernel says it.  Raises OSError.  The module `resource` may be a file of the job's."""
    with open(_LIMITS) as file:
        return next((line.split()[3] for line in file if line.startswith(name)), UNLIMITED)


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise NoRoom(f"{size >> 20} MB for rows: {error.strerror}") from None


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
