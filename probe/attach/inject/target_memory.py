"""The target's bytes through /proc/PID/mem.

Used by everything in this package that looks into the target.  Nothing here stops or changes the target except
`Memory.write`, which only the remote call uses.
"""

from __future__ import annotations

import errno
import os

from . import ptrace

PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """The target's bytes; neither namespaces nor deleted files matter to it.  descriptor: for code that closes all
    other files."""

    def __init__(self, pid: int) -> None:
        path = f"/proc/{pid}/mem"
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, length: int) -> bytes:
        data = os.pread(self.descriptor, length, address)
        if len(data) != length:
            raise OSError(errno.EIO, f"{len(data)} of {length} bytes at {address:#x}")
        return data

    def write(self, address: int, data: bytes, tid: int) -> None:
        """Writes also to pages that the target may not write.  Kernels may forbid that through /proc/PID/mem
        (proc_mem.force_override, 6.12); then the stopped thread `tid` is used."""
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self.descriptor, data[done:], address + done)
        except OSError:
            ptrace.poke(tid, address, data)

    def close(self) -> None:
        os.close(self.descriptor)
