"""The target's address space: its mappings, and its bytes through /proc/PID/mem.

Used by everything in this package that looks into the target.  Nothing here stops or changes the target
but `Memory.write`, which the remote call alone uses.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from . import ptrace

PAGE = os.sysconf("SC_PAGE_SIZE")
_DELETED = " (deleted)"


class Mapping(NamedTuple):
    """One line of /proc/PID/maps; path is "" for anonymous memory."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str

    @property
    def name(self) -> str:
        """The file's last component, also of a file deleted since."""
        return os.path.basename(self.path.removesuffix(_DELETED))


def read_mappings(pid: int) -> list[Mapping]:
    """Raises PermissionError, or FileNotFoundError or ProcessLookupError when the process is gone."""
    with open(f"/proc/{pid}/maps", errors="surrogateescape") as lines:
        return [_mapping(line) for line in lines]


def _mapping(line: str) -> Mapping:
    """Range, permissions, offset, device, inode, and the path, which may hold blanks or be left out."""
    addresses, permissions, offset, _, _, *path = line.rstrip("\n").split(None, 5)
    start, _, end = addresses.partition("-")
    return Mapping(int(start, 16), int(end, 16), permissions, int(offset, 16), path[0] if path else "")


def mapping_at(mappings: list[Mapping], address: int) -> Mapping | None:
    return next((mapping for mapping in mappings if mapping.start <= address < mapping.end), None)


def modules(mappings: list[Mapping]) -> dict[str, int]:
    """Path -> load address of every mapped file, in the order of the addresses."""
    loaded: dict[str, int] = {}
    for mapping in mappings:
        if mapping.path.startswith("/") and mapping.offset == 0:
            loaded.setdefault(mapping.path, mapping.start)
    return loaded


class Memory:
    """The target's bytes; neither namespaces nor deleted files matter to it.  descriptor: for who closes others."""

    def __init__(self, pid: int) -> None:
        self.descriptor = _open(f"/proc/{pid}/mem")

    def read(self, address: int, length: int) -> bytes:
        data = os.pread(self.descriptor, length, address)
        if len(data) != length:
            raise OSError(errno.EIO, f"{len(data)} of {length} bytes at {address:#x}")
        return data

    def write(self, address: int, data: bytes, tid: int) -> None:
        """Also to pages the target may not write.  Kernels may forbid that through /proc/PID/mem
        (proc_mem.force_override, 6.12), so the stopped thread `tid` is the second way."""
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self.descriptor, data[done:], address + done)
        except OSError:
            ptrace.poke(tid, address, data)

    def close(self) -> None:
        os.close(self.descriptor)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
