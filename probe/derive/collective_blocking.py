"""When a thread was blocked by collective operations, and when any operation was under way.

Called by step_trace.  A thread is blocked while it issues an operation and while it waits for one: by Work.wait or
wait_tensor (spans of kind WAIT), at once (BLOCKING), or in C++ in DDP, which sends its buffers and waits, and whose
reducer waits at the end of a backward pass for what it sent last.  Invariant: every interval was measured.
"""

from __future__ import annotations

import numpy as np

from ..arrays.dtypes import Bools, Ints
from ..snapshot.rows import Rows
from ..streams import BLOCKING, COLLECTIVES, ENGINE, KIND_MASK, SPANS, WAIT
from .partition import Partition
from .spans import united

_DDP = "ddp"
_HOST = ("gloo", "mpi", "ucc")  # backends whose operations are not in the order of a device's stream


def blocked(part: Partition, thread: int) -> tuple[Ints, Ints]:
    """Starts and ends, disjoint and sorted."""
    spans, operations = part.rows(SPANS), part.rows(COLLECTIVES)
    spans, operations = spans.of(spans["thread"] == thread), operations.of(operations["thread"] == thread)
    waits = spans.of(spans["flags"] & KIND_MASK == WAIT)
    start, end = operations["start_ns"], _ended(part, operations)
    issued = np.where(operations["issued_ns"] > 0, operations["issued_ns"], end)
    engine = spans.of(spans["flags"] & KIND_MASK == ENGINE)
    passes = united(engine["start_ns"], engine["end_ns"])
    of_ddp = np.isin(operations["source"], [id for id, text in part.log.strings.items() if text == _DDP])
    of_ddp &= ~np.isin(operations["group"], _on_devices(part))  # there it is a stream that waits
    at_once = (operations["flags"] & BLOCKING != 0) | (of_ddp & ~_inside(start, *passes))
    reducer = _of_reducer(start[of_ddp], issued[of_ddp], end[of_ddp], *passes)
    return united(
        np.concatenate([start, waits["start_ns"], reducer[0]]),
        np.concatenate([np.where(at_once, end, issued), waits["end_ns"], reducer[1]]),
    )


def under_way(part: Partition) -> tuple[Ints, Ints]:
    """From issue to end of operations on any thread, disjoint and sorted."""
    operations = part.rows(COLLECTIVES)
    return united(operations["start_ns"], _ended(part, operations))


def on_host(part: Partition) -> bool:
    """Whether the host's clock shows when each operation ran, as it does for these backends only."""
    return not _on_devices(part)


def _on_devices(part: Partition) -> list[int]:
    return [id for id, group in part.log.groups.items() if group.get("backend") not in _HOST]


def _ended(part: Partition, operations: Rows) -> Ints:
    done = operations["done_ns"]
    return np.where(done > 0, done, part.rank.now_ns)


def _inside(times: Ints, start: Ints, end: Ints) -> Bools:
    if not len(start):
        return np.zeros(len(times), np.bool_)
    place = np.searchsorted(start, times, side="right") - 1
    return (place >= 0) & (times < end[place])


def _of_reducer(start: Ints, issued: Ints, end: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """For each pass, the time from the last issue to the last end of DDP's operations, if the end comes later."""
    place = np.searchsorted(first, start, side="right") - 1
    inside = _inside(start, first, last)
    begin, until = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    np.maximum.at(begin, place[inside], issued[inside])
    np.maximum.at(until, place[inside], end[inside])
    until = np.minimum(until, last)
    waits = until > begin
    return begin[waits], until[waits]
