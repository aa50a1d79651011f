"""Calls a function on a thread of the job's when that ends.

Used by capture.py.  Invariant: the function is called with the GIL, before what C++ keeps for the thread is destroyed.
"""

from __future__ import annotations

from _thread import _local
from collections.abc import Callable


class ThreadEnd:
    """Made on that thread; the function is also called when this is freed, on whatever thread that happens."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._of_thread = _local()  # what it has goes with the thread
        self._of_thread.last = _Last(call)


class _Last:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()
