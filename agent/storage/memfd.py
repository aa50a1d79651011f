"""Files in memory, also where Python cannot make them: built for an old C library, as conda's and uv's are.

Called by memory.py and by the profiler.  Invariant: nothing is left to the garbage collector.
"""

from __future__ import annotations

import os

from .c_function import c_function

_CLOEXEC, _ALLOW_SEALING = 1, 2  # of linux/memfd.h: such a Python lacks these names, too
_X86_64, _OTHERS = 319, 279  # numbers of the call


def memfd_create(name: str) -> int:
    """A descriptor that programs which the job starts do not get.  Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, _CLOEXEC | _ALLOW_SEALING)
    return _by_number(_X86_64 if os.uname().machine == "x86_64" else _OTHERS, name.encode())


def _by_number(number: int, name: bytes) -> int:
    import ctypes

    call, raise_error, kind = c_function("syscall"), c_function("PyErr_SetFromErrno"), ctypes.py_object(OSError)
    made = int(call(number, name, _CLOEXEC | _ALLOW_SEALING))
    if made < 0:
        raise_error(kind)  # at once: errno is still that of the call
    return made
