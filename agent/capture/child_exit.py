"""Lets a forked child end once torch's profiler has begun in its parent.

Kineto, once begun, waits at the end of a process for a thread that only the parent has: a child that ends by sys.exit()
would stand still there for good.  One that ends by os._exit(), as workers do, does not.  Used by profiler.py.
Invariant: what is left to a detached job is a call of the C library, none of ours.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from ..fork import in_child_for_good
from ..storage.c_function import c_function


def let_children_end() -> None:
    """From now on a forked child ends as os._exit() ends it, with its status, after it has ended Python and written
    what C has buffered.  Does nothing where the C library has no such call."""
    with suppress(ImportError, ValueError, AttributeError):
        import ctypes

        leave, write = (ctypes.cast(c_function(name), ctypes.c_void_p) for name in ("_exit", "fflush"))
        in_child_for_good([partial(c_function("on_exit"), leave, None),
                           partial(c_function("__cxa_atexit"), write, None, None)])  # fmt: skip
