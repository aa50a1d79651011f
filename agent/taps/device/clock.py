"""The clock of one CUDA device: events from a bounded stock, recorded on the job's threads and read on the agent's.

CUDA reports the time between two events in float32 milliseconds.  So an anchor is recorded every quarter of a second,
and the events after it are timed from it: their error is then some 30 ns at most.
Invariant: nothing waits for the device, or creates a context on one that the job does not use.  If the stock has no
event, or the device has not reached an event, the time is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from time import perf_counter_ns, sleep
from typing import Any

from ....streams import MARK
from ...storage.rows import Stream
from ..cuda import Cuda

_ANCHOR_NS = 250_000_000
_MAX_ANCHOR_DISTANCE_NS = 8_000_000_000  # between two anchors: beyond this the float32 error exceeds 0.5 µs
_BATCH_ROWS = 32  # rows between two pauses: they hold the GIL for some 0.2 ms
_PAUSE_S = 0.0002
_MAX_ROWS = 4096  # rows that one call of resolve() writes

_NOT_READ = -1
_NO_NUMBERS = (_NOT_READ,) * 4  # of the allocator

Begun = tuple["DeviceClock", "Anchor", Any, int]  # clock, anchor, event, bytes allocated at the begin


class Anchor:
    """An event from which others are timed.  base_ns: its time, once known."""

    def __init__(self, event: Any, host_ns: int, before: Anchor | None) -> None:
        self.event, self.host_ns = event, host_ns
        self.before = before if before is not None and host_ns - before.host_ns < _MAX_ANCHOR_DISTANCE_NS else None
        self.base_ns: int | None = None

    def settle(self, cuda: Cuda) -> int | None:
        """Its time; None if the device has not reached it yet.  The first anchor takes the host's time."""
        chain = [self]
        while (before := chain[-1].before) is not None and chain[-1].base_ns is None:
            chain.append(before)
        for anchor in reversed(chain):
            if anchor.base_ns is None:
                if not cuda.reached(anchor.event):
                    return None
                before = anchor.before
                if before is None or before.base_ns is None:
                    anchor.base_ns = anchor.host_ns
                else:
                    anchor.base_ns = before.base_ns + cuda.elapsed_ns(before.event, anchor.event)
                anchor.before = None
        return self.base_ns


class DeviceClock:
    """begin(), end() and mark() run on the thread that issues to the device; resolve() runs on the agent's.

    fresh: events not yet used by any device; an event belongs to the device that first records it.  devices: those that
    share them; where there are several, each holds `most` at most.
    """

    def __init__(self, cuda: Cuda, index: int, fresh: deque[Any], rows: Stream, devices: Set[int], most: int) -> None:
        self._cuda, self.index, self._fresh, self._rows = cuda, index, fresh, rows
        self._devices, self._most = devices, most
        self._spare: deque[Any] = deque()
        self._waiting: deque[tuple[Anchor, Any, Any, tuple[int, ...]]] = deque()
        self._anchor: Anchor | None = None

    def begin(self, reads_memory: bool) -> Begun | None:
        """Time something that begins on the device now; None if it cannot be timed."""
        if self._cuda.is_capturing():
            return None
        event = self.take()
        if event is None:
            return None
        allocated = self._cuda.memory(self.index)["allocated_bytes"]["all"]["current"] if reads_memory else _NOT_READ
        stream = self._cuda.stream(self.index)
        anchor = self._anchor_now(stream)
        event.record(stream)
        return self, anchor, event, allocated

    def end(self, begun: Begun, kind: int, host_ns: int, thread: int) -> None:
        """What began there has ended; kind, host_ns and thread identify its row."""
        _, anchor, event, before = begun
        last = None if self._cuda.is_capturing() else self.take()
        if last is None:
            self._spare.append(event)
            return
        last.record(self._cuda.stream(self.index))
        numbers = _NO_NUMBERS
        if before != _NOT_READ:
            held = self._cuda.memory(self.index)
            allocated, reserved = held["allocated_bytes"]["all"], held["reserved_bytes"]["all"]
            numbers = before, allocated["current"], allocated["peak"], reserved["current"]
        self._waiting.append((anchor, event, last, (host_ns, thread, self.index, *numbers, kind)))

    def mark(self, host_ns: int, thread: int) -> None:
        """Time a moment on the device; host_ns and thread identify its row."""
        event = None if self._cuda.is_capturing() else self.take()
        if event is None:
            return
        stream = self._cuda.stream(self.index)
        anchor = self._anchor_now(stream)
        event.record(stream)
        self._waiting.append((anchor, event, event, (host_ns, thread, self.index, *_NO_NUMBERS, MARK)))

    def take(self) -> Any:
        """An event that is not in use; None if the stock is empty, or what is left of it is for other devices."""
        try:
            return self._spare.pop()
        except IndexError:
            if len(self._devices) > 1 and self.events >= self._most:
                return None
        try:
            return self._fresh.pop()
        except IndexError:
            return None

    def _anchor_now(self, stream: Any) -> Anchor:
        now, anchor = perf_counter_ns(), self._anchor
        if anchor is None or now - anchor.host_ns > _ANCHOR_NS:
            event = self._cuda.event()
            event.record(stream)
            self._anchor = anchor = Anchor(event, now, anchor)
        return anchor

    # ---- on the agent's thread

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def events(self) -> int:
        """The number of events that it holds, approximately: a mark counts as two."""
        return len(self._spare) + 2 * len(self._waiting)

    def resolve(self) -> None:
        """Write the rows of what has ended on the device, up to the first that has not."""
        if not self._waiting:
            return
        self._cuda.enter(self.index)
        for done in range(_MAX_ROWS):
            if not self._resolve_next():
                return
            if done % _BATCH_ROWS == _BATCH_ROWS - 1:
                sleep(_PAUSE_S)

    def _resolve_next(self) -> bool:
        try:
            anchor, first, last, row = self._waiting[0]
        except IndexError:
            return False
        if not (self._cuda.reached(last) and self._cuda.reached(first)):
            return False
        base_ns = anchor.settle(self._cuda)
        if base_ns is None:
            return False
        start_ns = base_ns + self._cuda.elapsed_ns(anchor.event, first)
        end_ns = start_ns if last is first else base_ns + self._cuda.elapsed_ns(anchor.event, last)
        self._rows.append(start_ns, end_ns, *row)
        self._waiting.popleft()
        self._spare.extend({first, last})
        return True

    def drop(self) -> None:
        """Drop all events, on one of the agent's threads."""
        if self._spare or self._waiting:
            self._cuda.enter(self.index)
        self._anchor = None
        self._waiting.clear()
        self._spare.clear()
