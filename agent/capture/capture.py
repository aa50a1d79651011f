"""One capture: whose it is, where it stands, and what is told of it.

Used by captures.py.  Invariant: its trace is memory of this process until free().
"""

from __future__ import annotations

import mmap
import os
import time
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

from ... import protocol as wire
from ..boundary.boundary import Ticket
from ..inspect.frames import frames_of_others
from ..serve.server import Key
from .profiler import Profiler
from .thread_end import ThreadEnd

_SILENT_S = 10.0  # after which a client is gone that says nothing
_DEPOSITS_S = 120.0  # likewise, once it has been told: it reads the traces of all ranks
_MOST_S = 60
_MOST_BYTES = 128 << 20  # by which the process may grow meanwhile; what stop() makes of it is four times as much


class Capture:
    """One that has begun.  why: it ended early, in words; told: its figures once it is over, as `captured` has them;
    at_end: called when its thread ends, and when thread_end is freed."""

    def __init__(self, id: str, profiler: Profiler, rss_bytes: int, at_end: Callable[[], None]) -> None:
        self.id, self.profiler, self.thread, self.heard = id, profiler, get_ident(), time.monotonic()
        self.thread_end: ThreadEnd | None = ThreadEnd(at_end)
        self.rss_bytes = rss_bytes  # before
        self.told: dict[str, Any] = {}
        self.why = self.fault = ""
        self.ticket: Ticket | None = None
        self.watcher: Key | None = None
        self.trace: mmap.mmap | None = None
        self.is_on, self.is_over, self.is_told, self.is_unwanted = True, False, False, False

    @property
    def is_left(self) -> bool:
        """Whether its client is gone, or wants it no more."""
        silent_s = time.monotonic() - self.heard
        return self.is_unwanted or silent_s > (_DEPOSITS_S if self.is_told else _SILENT_S)

    @property
    def why_end(self) -> str:
        """Why it may not go on to its last step, in words; "" if it may."""
        grown = rss_bytes() - self.rss_bytes
        if self.is_left:
            return "its command has ended"
        if perf_counter_ns() - self.told["start_ns"] > _MOST_S * 1_000_000_000:
            return f"it had taken {_MOST_S} s"
        return f"the process had grown by {grown >> 20} MB" if grown > _MOST_BYTES else ""

    @property
    def has_thread(self) -> bool:
        """Whether the thread lives that began it, which alone can end it."""
        return self.thread == get_ident() or self.thread in frames_of_others()

    def free(self) -> None:
        trace, self.trace = self.trace, None
        if trace is not None:
            with suppress(BufferError):
                trace.close()


def messages(trace: mmap.mmap, first: int, last: int) -> Iterator[tuple[int, list[bytes]]]:
    """These of its bytes, as they are sent, each with its size."""
    for start in range(max(0, first), min(last, len(trace)), wire.LOG_BYTES_A_MESSAGE):
        piece = trace[start : min(start + wire.LOG_BYTES_A_MESSAGE, last)]
        yield len(piece), [wire.encode(wire.EVENTS, first=start), piece]


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
