"""Reading and writing the variables of a frame of the job.

Up to 3.12 a function's `f_locals` is a dict that the frame keeps: each access fills it from the variables, and the
interpreter writes it back after each trace event.  Invariant: no copy made here stays filled, because it would keep
every object in it alive; no copy is emptied while the interpreter may still write it back.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

COPIES = sys.version_info < (3, 13)  # since 3.13 f_locals writes through
_OPTIMIZED = 0x1  # code flag: locals are slots, so f_locals is not the namespace itself


def has_slots(frame: FrameType) -> bool:
    """False for modules and class bodies, whose f_locals is the namespace itself."""
    return bool(frame.f_code.co_flags & _OPTIMIZED)


def read(frame: FrameType) -> dict[str, Any]:
    """The variables bound at this moment."""
    values = dict(frame.f_locals)
    if has_slots(frame):
        empty({0: frame.f_locals})
    return values


def write(frame: FrameType, values: dict[str, Any]) -> None:
    """Bind these variables, which the frame must have, and leave all others as they are at this moment."""
    variables = frame.f_locals  # filled now, so that changes since read() are not undone
    variables.update(values)
    if COPIES and has_slots(frame):
        import ctypes

        python = ctypes.PyDLL("", handle=ctypes.pythonapi._handle)  # the job may have declared pythonapi's functions
        python.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        del variables
        empty({0: frame.f_locals})


def empty(copies: dict[int, Any]) -> None:
    """Empty the copies that only their frame holds; a copy held elsewhere was returned by locals()."""
    while copies:
        _, copy = copies.popitem()
        if COPIES and sys.getrefcount(copy) == 3:  # references: the frame's, ours and the argument's
            copy.clear()
