"""Runs user code so that another thread can interrupt it, but never after it has ended.

Used by evaluation.py.  CPython raises an exception that another thread has set at some later bytecode of the thread.
Invariant: the exception is set only while the guarded call is on the thread's stack, under the lock that run() takes
before it returns; so at most one can arrive late, and run() catches it.  Under the same lock run() forgets its thread,
so a cancel that comes late does not take the guarded call of the next snippet for its own.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections.abc import Callable
from typing import Any

from ..inspect.frames import frames_of_others
from ..job_signals import handlers


class Cancelled(BaseException):
    """Raised in a snippet to end it.  A type of our own, so that no handler in the snippet names it."""


class Interruptible:
    """run() on one thread at a time, cancel() on any other thread."""

    def __init__(self) -> None:
        self.cancelled = False
        self._lock = allocate_lock()
        self._thread: int | None = None
        self._pending = False  # an exception was set and may not have been raised yet

    def run(self, work: Callable[[], Any]) -> Any:
        """Returns or raises what work() does; raises Cancelled if cancel() was called before or during it."""
        self._thread = get_ident()
        try:
            try:
                return self._guarded(work)
            finally:
                self._leave()
        except Cancelled:
            self._leave()  # the late exception may have been raised in the first call
            raise
        finally:
            self._thread = None  # a signal handler of the job may have raised before _leave() had the lock

    def _guarded(self, work: Callable[[], Any]) -> Any:
        if self.cancelled:
            raise Cancelled
        return work()

    def _leave(self) -> None:
        with self._lock:
            if self._pending:
                try:
                    # Raise it here instead of clearing it: clearing leaves a flag set in 3.11's eval loop, with which
                    # the next traced call spins forever.
                    _set_exception(get_ident(), Cancelled)
                    while True:
                        pass
                except Cancelled:
                    self._pending = False
            self._thread = None

    def cancel(self) -> None:
        """End run() by an exception; does nothing when that is over.  Call again if the code swallowed it, or if a
        signal handler of the job ran on top of it: that must not be ended.
        """
        with self._lock:
            self.cancelled = True  # before the stack is checked: once on the stack, _guarded() checks this flag
            if self._thread is not None and self._is_guarded(self._thread):
                _set_exception(self._thread, Cancelled)
                self._pending = True

    def _is_guarded(self, thread: int) -> bool:
        guarded, of_job = Interruptible._guarded.__code__, handlers()
        frame = frames_of_others().get(thread)
        while frame is not None and frame.f_code not in of_job:
            if frame.f_code is guarded:
                return True
            frame = frame.f_back
        return False


def _set_exception(thread: int, exception: type[BaseException]) -> None:
    import ctypes

    # A handle of our own: the job may have declared the functions of ctypes.pythonapi.
    python = ctypes.PyDLL("", handle=ctypes.pythonapi._handle)
    python.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))
