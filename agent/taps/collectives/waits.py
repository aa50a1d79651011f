"""Waits: what stands still until an operation has ended, on whatever thread, as a span of kind WAIT.

Put in and taken out by the tap of collectives, of which it is a part: Work.wait in Python, and the operator wait_tensor
of functional collectives.  C++ that waits by itself (DDP's reducer) is seen by nobody; the reader knows when.  The one
invariant: what the caller waits for, gets and catches is what it would be without us.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from ....streams import FAILED, WAIT
from ...storage.rows import Stream
from ..dynamo import shielded_from_dynamo


class Tap(Protocol):
    """What a wait asks of the tap it belongs to."""

    recording: bool

    def trouble(self, error: Exception) -> None: ...


class _Nobody:
    recording = False

    def trouble(self, error: Exception) -> None:
        pass


class Waits:
    """install() and remove() Work.wait; kernel() is one for wait_tensor.

    ended(work, ns, failed) is told of every wait for a Work; it says whether the operation's own row has this wait.
    """

    def __init__(self, spans: Stream, tap: Tap, ended: Callable[[Any, int, bool], bool]) -> None:
        self._append, self._ended = spans.append, ended
        self._tap: Tap = tap
        self._class: Any = None
        self._before_us: Any = None  # what stood at Work.wait
        self._ours: Any = None

    def install(self, work_class: Any) -> None:
        self._class, self._before_us = work_class, work_class.__dict__["wait"]
        wait_before_us, over, clock = work_class.wait, self._over, perf_counter_ns

        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                result = wait_before_us(self, *args, **kwargs)
            except BaseException:
                over(self, start, FAILED)
                raise
            over(self, start, 0)
            return result

        wait.__doc__ = wait_before_us.__doc__
        self._ours = work_class.wait = shielded_from_dynamo(wait)

    def remove(self) -> None:
        """Put Work.wait back, unless somebody else has replaced ours meanwhile."""
        work_class, self._class = self._class, None
        if work_class is not None and work_class.__dict__.get("wait") is self._ours:
            work_class.wait = self._before_us
        self._ours = None  # it holds this

    def let_go(self) -> None:
        """At the end: of the tap, which holds this.  Nothing more is written."""
        self._tap = _Nobody()

    def kernel(self, redispatch: Callable[..., Any], below: Any) -> Any:
        over, clock = self._over, perf_counter_ns

        def kernel(keyset: Any, tensor: Any) -> Any:
            start = clock()
            try:
                result = redispatch(keyset & below, tensor)
            except BaseException:
                over(None, start, FAILED)
                raise
            over(None, start, 0)
            return result

        return shielded_from_dynamo(kernel)

    def _over(self, work: Any, start: int, flags: int) -> None:
        """A wait has just returned or raised."""
        end = perf_counter_ns()
        try:
            if (work is None or not self._ended(work, end, bool(flags))) and self._tap.recording:
                self._append(start, end, 0, get_ident(), WAIT | flags)
        except ValueError:  # the stream was closed meanwhile
            pass
        except Exception as error:  # inside a wait of the user's: nothing of ours may escape
            self._tap.trouble(error)
