"""The memory of another process, many ranges at once.

Used by the profiler.  Invariant: what is not mapped, or torn by a change of the maps, is an error or None, never a
part.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from typing import Any, Protocol

Ranges = Sequence[tuple[int, int]]  # address and size


class Memory(Protocol):
    def plan(self, ranges: Ranges) -> Any:
        """What copy() takes: the ranges, and where they are copied to."""

    def copy(self, plan: Any) -> bytearray | memoryview | None:
        """All ranges, one behind the other; None if one could not be read.  Valid until the next copy by this plan."""

    def read(self, address: int, size: int) -> bytes:
        """One range.  Raises OSError."""


class VmMemory:
    """By process_vm_readv: all ranges in one call of the system, which asks for ptrace's permission each time."""

    def __init__(self, pid: int) -> None:
        self._pid, self._call = pid, ctypes.CDLL(None, use_errno=True).process_vm_readv
        self._call.restype = ctypes.c_ssize_t
        vector = ctypes.c_void_p, ctypes.c_ulong
        self._call.argtypes = [ctypes.c_int, *vector, *vector, ctypes.c_ulong]

    def plan(self, ranges: Ranges) -> Any:
        local = bytearray(sum(size for _, size in ranges))
        held = (ctypes.c_char * len(local)).from_buffer(local)
        here = (ctypes.c_uint64 * 2)(ctypes.addressof(held), len(local))
        there = (ctypes.c_uint64 * (2 * len(ranges)))(*[word for each in ranges for word in each])
        return local, (here, 1, there, len(ranges), 0), held

    def copy(self, plan: Any) -> bytearray | None:
        return plan[0] if self._call(self._pid, *plan[1]) == len(plan[0]) else None

    def read(self, address: int, size: int) -> bytes:
        found = self.copy(self.plan([(address, size)]))
        if found is None:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return bytes(found)


class FileMemory:
    """By /proc/PID/mem, for which permission is asked only where it is opened.  The file is closed with this."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __del__(self) -> None:
        os.close(self._file)

    def plan(self, ranges: Ranges) -> Any:
        local, parts, at = memoryview(bytearray(sum(size for _, size in ranges))), [], 0
        for address, size in ranges:
            parts.append(([local[at : at + size]], address, size))
            at += size
        return local, parts

    def copy(self, plan: Any) -> memoryview | None:
        try:
            whole = all(os.preadv(self._file, buffers, address) == size for buffers, address, size in plan[1])
        except (OSError, OverflowError):
            return None
        return plan[0] if whole else None

    def read(self, address: int, size: int) -> bytes:
        found = os.pread(self._file, size, address)
        if len(found) != size:
            raise OSError("partly mapped")
        return found


def memory_of(pid: int, mapped: int) -> Memory | None:
    """The memory of a process on this host.  mapped: an address that it has.  None where it may not be read."""
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: a C library without process_vm_readv
        by_call = VmMemory(pid)
        by_call.read(mapped, 8)
        return by_call
    with contextlib.suppress(OSError, OverflowError):  # the address is what somebody says, and may be no address
        by_file = FileMemory(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
        by_file.read(mapped, 8)
        return by_file
    return None
