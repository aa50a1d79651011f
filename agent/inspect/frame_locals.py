"""Reading and writing the variables of a frame that somebody else runs.

Up to 3.12 `f_locals` of a function is a dict that the frame keeps: each access fills it from the variables, and
the interpreter writes it back after each trace event.  The one invariant: no such copy that was made here stays
filled, for it would keep every object in it alive; none is emptied while it may still be written back.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

COPIES = sys.version_info < (3, 13)  # from then on f_locals writes through
_OPTIMIZED = 0x1  # code flag: the locals are slots, and f_locals is not the namespace itself


def has_slots(frame: FrameType) -> bool:
    """False for modules and class bodies, whose f_locals is their namespace."""
    return bool(frame.f_code.co_flags & _OPTIMIZED)


def read(frame: FrameType) -> dict[str, Any]:
    """The variables that are bound now."""
    values = dict(frame.f_locals)
    if has_slots(frame):
        empty({0: frame.f_locals})
    return values


def write(frame: FrameType, values: dict[str, Any]) -> None:
    """Bind these variables, which the frame has, and leave all others as they are at this moment."""
    variables = frame.f_locals  # filled now, so that what changed since read() is not undone
    variables.update(values)
    if COPIES and has_slots(frame):
        import ctypes

        python = ctypes.PyDLL("", handle=ctypes.pythonapi._handle)  # the job may have declared pythonapi's functions
        python.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        del variables
        empty({0: frame.f_locals})


def empty(copies: dict[int, Any]) -> None:
    """Empty the copies that nobody but their frame holds; one that is held elsewhere came from locals()."""
    while copies:
        _, copy = copies.popitem()
        if COPIES and sys.getrefcount(copy) == 3:  # the frame's, ours and the argument's
            copy.clear()
