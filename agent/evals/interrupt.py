"""Running user code so that another thread can interrupt it, and nothing of that ever comes after its end.

Used by evaluation.py.  CPython raises an exception that was set from outside at some later bytecode of the thread.
The one invariant: it is set only while the guarded call stands on the thread's stack, under the lock that run()
takes before it returns; so at most one can come late, and run() is there to catch it.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from typing import Any


class Cancelled(BaseException):
    """Raised in a snippet that is to end; of ours alone, so that no handler of the snippet's names it."""


class Interruptible:
    """run() on one thread at a time, cancel() on any other."""

    def __init__(self) -> None:
        self.cancelled = False
        self._lock = allocate_lock()
        self._thread: int | None = None
        self._sent = False  # one was set, and may still be on its way

    def run(self, work: Callable[[], Any]) -> Any:
        """What work() returns or raises; Cancelled if cancel() was called before or during it."""
        self._thread = get_ident()
        try:
            try:
                return self._guarded(work)
            finally:
                self._leave()
        except Cancelled:
            self._leave()  # the one that came late may have come in there
            raise
        finally:
            self._thread = None

    def _guarded(self, work: Callable[[], Any]) -> Any:
        if self.cancelled:
            raise Cancelled
        return work()

    def _leave(self) -> None:
        with self._lock:
            if self._sent:
                try:
                    # It is not cleared but raised here: clearing one leaves 3.11's eval loop with a flag up that
                    # makes the next traced call spin for ever.
                    _set_exception(get_ident(), Cancelled)
                    while True:
                        pass
                except Cancelled:
                    self._sent = False

    def cancel(self) -> None:
        """End run() by an exception; again for code that swallowed it.  Does nothing when run() is over."""
        with self._lock:
            self.cancelled = True  # before the look at the stack: run() looks at it when it stands there
            if self._thread is not None and self._stands(self._thread):
                _set_exception(self._thread, Cancelled)
                self._sent = True

    def _stands(self, thread: int) -> bool:
        guarded = Interruptible._guarded.__code__
        frame = sys._current_frames().get(thread)
        while frame is not None:
            if frame.f_code is guarded:
                return True
            frame = frame.f_back
        return False


def _set_exception(thread: int, exception: type[BaseException]) -> None:
    import ctypes

    python = ctypes.PyDLL("", handle=ctypes.pythonapi._handle)  # the job may have declared pythonapi's functions
    python.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))
