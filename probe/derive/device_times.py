"""Times on CUDA devices beside those of the host: when each span or mark ran on its device, and whose time that is.

Called by torch_trace.  Invariant: device times are measured or NULL, and whatever contains an unknown time is NULL too;
a module on the CPU has the host's times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays.arrow import nullable, nulls
from ..arrays.integers import NONE, Arrays, Bools, Ints, distinct, find
from ..arrays.nesting import nearest, united
from ..snapshot.rows import Rows
from ..streams import DEVICE, ENGINE, FORWARD, GRAPH, KIND_MASK, MARK, OPTIMIZER
from .backward import Excluded, Instances, Marks, Passes, Times
from .partition import Partition
from .spans import Spans

_MB = 1 << 20
_ERROR_NS = 1000  # of the distance of two times: what float32 milliseconds cost at most (agent/taps/device/clock.py)
Resolve = Callable[[Passes, Marks, Excluded], Instances]


@dataclass(frozen=True)
class Timed(Arrays):
    """Times by the device's clock in ns, one element a row, and which of them are known."""

    own: Ints
    total: Ints
    own_known: Bools
    total_known: Bools


@dataclass(frozen=True)
class Stamps(Arrays):
    """When rows of another stream were on their device; device is NONE where that is not known."""

    start: Ints
    end: Ints
    device: Ints

    @cached_property
    def known(self) -> Bools:
        result: Bools = (self.device != NONE) & (self.end >= self.start)
        return result


class DeviceTimes:
    """What a rank recorded about its devices.  devices: the name of each subject's device."""

    def __init__(self, part: Partition, spans: Spans) -> None:
        rows = part.rows(DEVICE)
        marks = rows["flags"] & KIND_MASK == MARK
        self._rows, self._mark_rows = rows.of(~marks), rows.of(marks)
        self._spans = spans
        self._place = _find(self._rows, spans.start, spans.rows["thread"])
        self._stamps = _stamps(self._rows, self._place)
        part.require_agreement(spans.start[self._stamps.known], spans.subject[self._stamps.known])
        told = {**part.log.modules, **part.log.optimizers}
        self.devices = {serial: str(thing["device"]) for serial, thing in told.items() if thing.get("device")}
        measured, first = np.unique(spans.subject[self._stamps.known], return_index=True)
        for serial, device in zip(measured.tolist(), self._stamps.device[self._stamps.known][first], strict=True):
            self.devices.setdefault(serial, f"cuda:{device}")
        elsewhere = {serial for serial, device in self.devices.items() if device != "cpu"}
        uses_devices = DEVICE in part.rank.facts.streams or bool(elsewhere)
        spread = {serial for serial, thing in told.items() if thing.get("spread") and uses_devices}
        for serial in spread:
            self.devices.pop(serial, None)
        elsewhere |= spread | {*distinct(spans.subject[spans.kind == GRAPH]).tolist()}
        self._spread, self._elsewhere = np.array(sorted(spread), np.int64), np.array(sorted(elsewhere), np.int64)

    def timed(self) -> Timed:
        """The times of all spans; self time is what spans inside it on the same device leave over."""
        spans, stamps = self._spans, self._stamps
        known, total = stamps.known, stamps.end - stamps.start
        around = nearest(spans.nesting, known)
        inside = known & (around != NONE) & (stamps.device == stamps.device[around])
        taken = np.bincount(around[inside], weights=total[inside], minlength=len(total)).astype(np.int64)
        missing = self._unknown() & (around != NONE)
        whole = np.bincount(around[missing], minlength=len(total)) == 0
        whole[around[self._astray(np.where(inside, around, NONE))]] = False
        known = known & ~np.isin(spans.subject, self._spread)
        return Timed(np.maximum(total - taken, 0), total, known & whole, known)

    def _astray(self, parent: Ints) -> Ints:
        """The spans whose time is not their parent's alone, as on several streams: it, or that of a span inside, begins
        before the parent's or ends after it, or it overlaps with the one before.  parent: a row, NONE without one."""
        start, end = self._stamps.start.copy(), self._stamps.end.copy()  # with all that is inside
        for rows in reversed(self._spans.nesting.generations):
            inner = rows[parent[rows] != NONE]
            np.minimum.at(start, parent[inner], start[inner])
            np.maximum.at(end, parent[inner], end[inner])
        inner = np.flatnonzero(parent != NONE)
        inner = inner[np.lexsort((start[inner], parent[inner]))]
        of = parent[inner]
        outside = np.zeros(len(inner), np.bool_)
        for around in (inner, of):
            outside |= start[inner] < self._stamps.start[around] - _ERROR_NS
            outside |= end[inner] > self._stamps.end[around] + _ERROR_NS
        outside[1:] |= (of[1:] == of[:-1]) & (start[inner][1:] < end[inner][:-1] - _ERROR_NS)
        return inner[outside]

    def _unknown(self) -> Bools:
        """Spans that must have run on a device but were not timed there."""
        spans = self._spans
        calls = (spans.kind == FORWARD) & np.isin(spans.subject, self._elsewhere)
        result: Bools = ~self._stamps.known & (calls | np.isin(spans.kind, (ENGINE, OPTIMIZER, GRAPH)))
        return result

    def of_backwards(self, passes: Passes, engines: Ints, marks: Marks, resolve: Resolve) -> Timed:
        """The times of the instances that resolve() finds in these passes and marks, with the device's times in them.

        engines: the rows of the spans that are the passes.  To tell which instances are fully known, resolve() runs a
        second time with lengths that count the gaps in what is known.
        """
        ran, seen = self._stamps.of(engines), _stamps(self._mark_rows, _find(self._mark_rows, marks.time, marks.thread))
        excluded = Excluded.of(self._times_of, self._spans.recompute, self._spans.in_backward)
        found = resolve(replace(passes, start=ran.start, end=ran.end), replace(marks, time=seen.start), excluded)
        none = passes.start[:0], passes.end[:0]
        unclear = self._unclear(passes) | _not_rising(ran, marks.number, seen)
        gaps = resolve(*_gaps(passes, ran, marks, seen, unclear), Excluded(none, none))
        seen_at_all = ran.known.copy()
        seen_at_all[marks.number[seen.known]] = True
        known = seen_at_all[found.number]
        return Timed(np.maximum(found.own, 0), found.total, known & (gaps.own == 0), known & (gaps.total == 0))

    def _times_of(self, chosen: Bools) -> Times:
        """Of these spans, as far as they are known; on the device, disjoint and sorted."""
        known = chosen & self._stamps.known
        return united(self._stamps.start[known], self._stamps.end[known])

    def _unclear(self, passes: Passes) -> Bools:
        """Passes in which forwards ran again, graphs were replayed or optimizers stepped, untimed or on several
        devices."""
        spans, again = self._spans, self._spans.in_backward
        several = len(distinct(self._stamps.device[again & self._stamps.known])) > 1
        rows = np.flatnonzero(again if several else again & self._unknown())
        unclear = np.zeros(len(passes.start), np.bool_)
        number = np.searchsorted(passes.start, spans.start[rows], side="right") - 1
        unclear[number[number >= 0]] = True
        return unclear

    def off_host(self, subject: Ints) -> Bools:
        """Which of these subjects run on a device, which may be one whose times are not recorded."""
        return np.isin(subject, self._elsewhere)

    def seconds(self, off_host: Bools, host: Ints, on_device: Callable[[], tuple[Ints, Bools]]) -> Any:
        """Seconds by the clock of the device of the rows that are on one; on_device: ns, and which are known."""
        if not off_host.any():
            return host / 1e9
        device, known = on_device()
        return nullable(np.where(off_host, device, host) / 1e9, known | ~off_host)

    def memory(self, rows: Ints, others: int) -> dict[str, Callable[[], Any]]:
        """The columns of memory for these spans, followed by as many other rows, which have none."""
        place = self._place[rows]

        def column(slot: str, less: str = "") -> Any:
            if not (place != NONE).any():
                return nulls(len(rows) + others, "DOUBLE")
            values = self._rows[slot][place] - (self._rows[less][place] if less else 0)
            known = np.append((place != NONE) & (self._rows[slot][place] >= 0), np.zeros(others, np.bool_))
            return nullable(np.append(values, np.zeros(others, np.int64)) / _MB, known)

        return {
            "allocated": lambda: column("allocated"),
            "allocated_delta": lambda: column("allocated", "allocated_before"),
            "max_allocated": lambda: column("max_allocated"),
            "reserved": lambda: column("reserved"),
        }


def _find(rows: Rows, host_ns: Ints, thread: Ints) -> Ints:
    """The row of the device stream that belongs to each moment of a thread, NONE where there is none."""
    if not len(rows) or not len(host_ns):
        return np.full(len(host_ns), NONE, np.int64)
    threads = distinct(rows["thread"])
    least, most = int(rows["host_ns"].min()), int(rows["host_ns"].max())

    def keys(ns: Ints, of: Ints) -> Ints:
        place = find(of, threads)
        inside = (place != NONE) & (ns >= least) & (ns <= most)
        return np.where(inside, place * (most - least + 1) + (ns - least), NONE)

    known = keys(rows["host_ns"], rows["thread"])
    order = np.argsort(known, kind="stable")
    return np.append(order, NONE)[find(keys(host_ns, thread), known[order])]


def _stamps(rows: Rows, place: Ints) -> Stamps:
    if not len(rows):
        return Stamps(np.zeros_like(place), np.zeros_like(place), place)
    known = place != NONE
    slots = {"start_ns": 0, "end_ns": 0, "device": NONE}
    return Stamps(*(np.where(known, rows[slot][place], unknown) for slot, unknown in slots.items()))


def _not_rising(ran: Stamps, number: Ints, seen: Stamps) -> Bools:
    """Passes in which a mark comes before the one that it follows, as on several streams: what lies between two marks
    then overlaps with what lies between others."""
    every = np.arange(len(ran.start))
    known = np.concatenate([ran.known, seen.known, ran.known])
    of = np.concatenate([every, number, every])[known]
    time, device = (
        np.concatenate([of_pass, of_marks, at_end])[known]
        for of_pass, of_marks, at_end in ((ran.start, seen.start, ran.end), (ran.device, seen.device, ran.device))
    )
    order = np.lexsort((device, of))  # each device has a clock of its own; the order on it stays
    of, time, device = of[order], time[order], device[order]
    found = np.zeros(len(ran.start), np.bool_)
    follows = (of[1:] == of[:-1]) & (device[1:] == device[:-1])
    found[of[1:][follows & (time[1:] < time[:-1] - _ERROR_NS)]] = True
    return found


def _gaps(passes: Passes, ran: Stamps, marks: Marks, seen: Stamps, unclear: Bools) -> tuple[Passes, Marks]:
    """The passes and marks with other times: the stretch between two of them is as long as the number of its gaps."""
    device = np.where(unclear, NONE, ran.device)
    number, here = marks.number, np.where(unclear[marks.number], NONE, seen.device)
    last = np.append(number[1:] != number[:-1], True)[: len(number)]
    follows = np.where(last, device[number], np.append(here[1:], NONE)[: len(here)])
    gap = ((here == NONE) | (here != follows)).astype(np.int64)
    before = np.cumsum(gap) - gap
    of_pass, first = np.unique(number, return_index=True)
    begins, opened, count = device.copy(), np.zeros(len(device), np.int64), np.zeros(len(device), np.int64)
    begins[of_pass], opened[of_pass] = here[first], before[first]
    start = ((device == NONE) | (device != begins)).astype(np.int64)
    count[of_pass] = np.add.reduceat(gap, first) if len(first) else 0
    time = start[number] + before - opened[number]
    return replace(passes, start=np.zeros_like(start), end=start + count), replace(marks, time=time)
