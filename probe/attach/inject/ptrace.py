"""The ptrace system call, typed: one function per request, no state.

Called by `tracee` and `call`, on the thread that seized the tracee, as the kernel demands.  Failures are OSError with
the kernel's errno.  There is no fallback for requests that exist since Linux 5.3.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass

POKEDATA, CONT, DETACH, SYSCALL = 5, 7, 17, 24
GETREGSET, SETREGSET, SEIZE, INTERRUPT = 0x4204, 0x4205, 0x4206, 0x4207
GETSIGMASK, SETSIGMASK, GET_SYSCALL_INFO = 0x420A, 0x420B, 0x420E
OPTION_TRACESYSGOOD = 1
EVENT_STOP = 128
WAIT_ALL = 0x40000000  # __WALL: also threads, which are not children of waitpid's usual kind
REGSET_BYTES = 16384  # the largest extended state (AMX) takes 11 kB

_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class _Buffer(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@dataclass(frozen=True)
class SyscallStop:
    """A stop at a system call.  number: on entry only; value: on exit only."""

    entering: bool
    pc: int
    number: int
    value: int


def _request(request: int, tid: int, address: int = 0, data: int = 0) -> int:
    ctypes.set_errno(0)
    result = int(_ptrace(request, tid, address, data))
    if result == -1 and (code := ctypes.get_errno()):
        raise OSError(code, f"ptrace({request:#x}, {tid}): {os.strerror(code)}")
    return result


def seize(tid: int) -> None:
    """Trace the thread without stopping it; unlike PTRACE_ATTACH it sends no SIGSTOP."""
    _request(SEIZE, tid, 0, OPTION_TRACESYSGOOD)


def interrupt(tid: int) -> None:
    _request(INTERRUPT, tid)


def resume(tid: int, signal: int = 0) -> None:
    _request(CONT, tid, 0, signal)


def resume_to_syscall(tid: int) -> None:
    """Let it run to the next entry or exit of a system call."""
    _request(SYSCALL, tid)


def detach(tid: int, signal: int = 0) -> None:
    _request(DETACH, tid, 0, signal)


def get_regset(tid: int, kind: int) -> bytes:
    buffer = ctypes.create_string_buffer(REGSET_BYTES)
    io = _Buffer(ctypes.addressof(buffer), REGSET_BYTES)
    _request(GETREGSET, tid, kind, ctypes.addressof(io))
    return ctypes.string_at(buffer, io.length)


def set_regset(tid: int, kind: int, data: bytes) -> None:
    buffer = ctypes.create_string_buffer(data, len(data))
    io = _Buffer(ctypes.addressof(buffer), len(data))
    _request(SETREGSET, tid, kind, ctypes.addressof(io))


def get_signal_mask(tid: int) -> int:
    mask = ctypes.c_uint64()
    _request(GETSIGMASK, tid, 8, ctypes.addressof(mask))
    return mask.value


def set_signal_mask(tid: int, blocked: int) -> None:
    mask = ctypes.c_uint64(blocked)
    _request(SETSIGMASK, tid, 8, ctypes.addressof(mask))


def poke(tid: int, address: int, data: bytes) -> None:
    """Write words; the length is padded to a multiple of 8 with zeros."""
    padded = data + bytes(-len(data) % 8)
    for offset in range(0, len(padded), 8):
        _request(POKEDATA, tid, address + offset, struct.unpack_from("<Q", padded, offset)[0])


def syscall_stop(tid: int) -> SyscallStop:
    """The system call that the stopped thread is about to make or has just made."""
    buffer = ctypes.create_string_buffer(96)
    _request(GET_SYSCALL_INFO, tid, len(buffer), ctypes.addressof(buffer))
    operation, pc = buffer.raw[0], struct.unpack_from("<Q", buffer.raw, 8)[0]
    word = struct.unpack_from("<q", buffer.raw, 24)[0]  # nr on entry, rval on exit
    entering = operation == 1
    return SyscallStop(entering, pc, word if entering else -1, 0 if entering else word)
