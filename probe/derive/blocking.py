"""When collectives blocked the threads that called them: time that is no module's, and a phase of a step.

Called for step_trace, phase_trace and torch_trace.  A thread is blocked while it issues an operation and while it waits
for one: by Work.wait or wait_tensor (spans of kind WAIT), at once (BLOCKING), or in C++ in DDP, which sends its buffers
and waits, and whose reducer waits at the end of a backward pass for what it sent last.  Invariant: every interval was
measured, and those of a thread are disjoint.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..arrays.integers import NONE, Bools, Ints, distinct, find
from ..arrays.nesting import around, covered, united
from ..snapshot.log import Log
from ..snapshot.rows import Rows
from ..streams import BLOCKING, COLLECTIVES, ENGINE, KIND_MASK, SPANS, WAIT
from .partition import Partition
from .phases import Intervals

_DDP = "ddp"
_NO_THREADS: Ints = np.zeros(0, np.int64)
_HOST = ("gloo", "mpi", "ucc")  # backends whose operations are not in the order of a device's stream


class Blocking:
    """All that is known of a partition.  start, end, group (NONE if unknown), thread: of each time that a thread was
    blocked, by thread and time.  autograd: threads that run passes of others; who asks only for threads that end steps
    need not know them."""

    def __init__(self, part: Partition, autograd: Ints = _NO_THREADS) -> None:
        self._part, self._autograd = part, autograd
        operations, spans = part.rows(COLLECTIVES), part.rows(SPANS)
        waits = spans.of(spans["flags"] & KIND_MASK == WAIT)
        start, end, issued = _times(part, operations)
        thread = np.concatenate([operations["thread"], waits["thread"]])
        self._line = _Line.of(
            np.concatenate([start, waits["start_ns"]]), np.concatenate([end, waits["end_ns"]]), thread
        )
        found = _found(self._line, operations, start, end, issued, waits, self._passes, _of_ddp(part, operations))
        self.start, self.end, self.group, self.thread = self._line.back(found.outermost().joined())

    @cached_property
    def _passes(self) -> tuple[Ints, Ints]:
        """Starts and ends of the passes of autograd's engine, on the line of all threads; on a thread of autograd's,
        of those in which it sent something."""
        spans, operations = self._part.rows(SPANS), self._part.rows(COLLECTIVES)
        engine = spans.of(spans["flags"] & KIND_MASK == ENGINE)
        sent = operations.of(np.isin(operations["thread"], self._autograd))
        passes = united(engine["start_ns"], engine["end_ns"])
        place = around(sent["start_ns"], *passes)
        thread = np.concatenate([engine["thread"], sent["thread"][place != NONE]])
        start, end = (
            self._line.at(np.concatenate([engine[slot], times[place[place != NONE]]]), thread)
            for slot, times in zip(("start_ns", "end_ns"), passes, strict=True)
        )
        return united(start, end)

    def __len__(self) -> int:
        return len(self.start)

    def of(self, thread: int) -> Intervals:
        """When this thread was blocked, of the kind WAIT."""
        mine = self.thread == thread
        return Intervals(self.start[mine], self.end[mine], np.full(int(mine.sum()), WAIT))

    def within(self, start: Ints, end: Ints, thread: Ints) -> Ints:
        """For how many ns each of these threads was blocked between two moments."""
        if not len(self):
            return np.zeros(len(start), np.int64)
        begin, until = self.on_line
        return covered(self._line.at(end, thread), begin, until) - covered(self._line.at(start, thread), begin, until)

    @cached_property
    def on_line(self) -> tuple[Ints, Ints]:
        return self._line.at(self.start, self.thread), self._line.at(self.end, self.thread)

    @property
    def on_device(self) -> Bools:
        """Where the operation ran on a device, whose waiting the host does not see."""
        return np.isin(self.group, _on_devices(self._part.log))


class _Line:
    """The times of several threads one after the other, so that all are looked up at once."""

    def __init__(self, threads: Ints, low: Ints, high: Ints) -> None:
        self._threads, self._low, self._high = threads, low, high
        self._shift = np.cumsum(high - low + 2) - high

    @classmethod
    def of(cls, start: Ints, end: Ints, thread: Ints) -> _Line:
        known = distinct(thread)
        place = find(thread, known)
        low, high = np.full(len(known), np.iinfo(np.int64).max), np.zeros(len(known), np.int64)
        np.minimum.at(low, place, start)
        np.maximum.at(high, place, end)
        return cls(known, low - 1, high + 1)

    def at(self, times: Ints, threads: Ints) -> Ints:
        """Where these moments are; before or after all of their thread's if they are out of its range."""
        place = find(threads, self._threads)
        if not len(self._threads):
            return np.full(len(times), NONE, np.int64)
        here: Ints = np.clip(times, self._low[place], self._high[place]) + self._shift[place]
        return np.where(place == NONE, NONE, here)

    def back(self, found: Intervals) -> tuple[Ints, Ints, Ints, Ints]:
        """Start, end, kind and thread of intervals on the line."""
        if not len(self._threads):
            return found.start, found.end, found.kind, found.start
        place = np.searchsorted(self._low + self._shift, found.start, side="right") - 1
        shift = self._shift[place]
        return found.start - shift, found.end - shift, found.kind, self._threads[place]


def _found(
    line: _Line, operations: Rows, start: Ints, end: Ints, issued: Ints, waits: Rows, passes: tuple[Ints, Ints],
    of_ddp: Bools,
) -> Intervals:  # fmt: skip
    """What blocked any thread, on the line, each with its group; they may overlap."""
    group, thread = operations["group"], operations["thread"]
    begin, until, sent = (line.at(times, thread) for times in (start, end, issued))
    at_once = (operations["flags"] & BLOCKING != 0) | (of_ddp & (around(begin, *passes) == NONE))
    reducer = _of_reducer(begin[of_ddp], sent[of_ddp], until[of_ddp], group[of_ddp], *passes)
    called = Intervals(begin, np.where(at_once, until, sent), group)
    waited = Intervals(
        line.at(waits["start_ns"], waits["thread"]),
        line.at(waits["end_ns"], waits["thread"]),
        _groups_under_way(waits["start_ns"], start, end, group),
    )
    return called.plus(waited, reducer)


def _of_reducer(start: Ints, issued: Ints, end: Ints, group: Ints, first: Ints, last: Ints) -> Intervals:
    """For each pass, the time from the last issue to the last end of DDP's operations, if the end comes later."""
    place = around(start, first, last)
    inside = place != NONE
    begin, until, of = (np.zeros(len(first), np.int64) for _ in range(3))
    np.maximum.at(begin, place[inside], issued[inside])
    np.maximum.at(until, place[inside], end[inside])
    of[place[inside]] = group[inside]
    until = np.minimum(until, last)
    return Intervals(begin, until, of).of(until > begin)


def _groups_under_way(moments: Ints, start: Ints, end: Ints, group: Ints) -> Ints:
    """The group that has operations under way at each moment, NONE unless it is one."""
    found, several = np.full(len(moments), NONE, np.int64), np.zeros(len(moments), np.bool_)
    for each in distinct(group).tolist():
        mine = group == each
        begun = np.searchsorted(np.sort(start[mine]), moments, side="right")
        busy = begun > np.searchsorted(np.sort(end[mine]), moments, side="right")
        several |= busy & (found != NONE)
        found[busy] = each
    return np.where(several, NONE, found)


def under_way(part: Partition) -> tuple[Ints, Ints]:
    """From issue to end of operations on any thread, disjoint and sorted."""
    start, end, _ = _times(part, part.rows(COLLECTIVES))
    return united(start, end)


def on_host(part: Partition) -> bool:
    """Whether the host's clock shows when each operation ran, as it does for these backends only."""
    return not _on_devices(part.log)


def collectives_alike(log: Log) -> tuple[object, ...]:
    """Equal for ranks whose operations may be read with one of their logs."""
    groups = tuple((id, group.get("name"), group.get("backend")) for id, group in sorted(log.groups.items()))
    return *groups, *(id for id, text in log.strings.items() if text == _DDP)


def settled(part: Partition) -> Rows:
    """The operations, with an end and an issue of each: see _times()."""
    operations = part.rows(COLLECTIVES)
    if (operations["done_ns"] > 0).all() and (operations["issued_ns"] > 0).all():
        return operations
    found = Rows(operations.slots, operations.table.copy())
    found["done_ns"][:], found["issued_ns"][:] = _times(part, operations)[1:]
    return found


def _times(part: Partition, operations: Rows) -> tuple[Ints, Ints, Ints]:
    """Start, end and issue of each operation; of one that is in flight, the end is now."""
    done, issued = operations["done_ns"], operations["issued_ns"]
    end = np.where(done > 0, done, part.rank.now_ns)
    return operations["start_ns"], end, np.where(issued > 0, issued, end)


def _of_ddp(part: Partition, operations: Rows) -> Bools:
    """DDP's own operations, if the host waits for them: on a device it is a stream that waits."""
    sources = [id for id, text in part.log.strings.items() if text == _DDP]
    result: Bools = _is_in(operations["source"], sources) & ~_is_in(operations["group"], _on_devices(part.log))
    return result


def _is_in(values: Ints, wanted: list[int]) -> Bools:
    """np.isin would import numpy.ma for a list that is empty."""
    result: Bools = np.isin(values, np.array(wanted, np.int64))
    return result


def _on_devices(log: Log) -> list[int]:
    return [id for id, group in log.groups.items() if group.get("backend") not in _HOST]
