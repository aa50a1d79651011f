"""Functions of the C library and of Python's, as the process has them: used by memfd.py and the captures.

Invariant: nothing is left to the garbage collector.
"""

from __future__ import annotations

from typing import Any


def c_function(name: str) -> Any:
    """By its address, for what ctypes.pythonapi gives by name is shared with the job, and refers to itself.  Called
    with the GIL.  Raises ValueError where there is none of this name, ImportError in a Python without ctypes."""
    import ctypes

    api = ctypes.pythonapi
    return api._FuncPtr(ctypes.addressof(ctypes.c_char.in_dll(api, name)))
