"""How many bytes the C library has given out: the only total that there is of a CPU's tensors.

Called by tensors.py.  It counts what else is allocated, too, but not Python's small objects, nor what is mapped from
files or shared with other processes.
"""

from __future__ import annotations

import sys
from typing import Any

from ..inspect.parked_threads import api_function

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
_structure: list[Any] = []  # made once: a class is a cycle


def malloc_bytes() -> int | None:
    """None where the C library does not tell (glibc before 2.33).  Cost: 0.1 ms."""
    ctypes: Any = sys.modules.get("ctypes")  # loaded in every job that has torch
    if ctypes is None:
        return None
    try:
        ask = api_function("mallinfo2")
    except ValueError:
        return None
    if not _structure:
        _structure.append(type("mallinfo2", (ctypes.Structure,), {"_fields_": [(n, ctypes.c_size_t) for n in _FIELDS]}))
    ask.restype = _structure[0]
    told = ask()
    return int(told.uordblks + told.hblkhd)
