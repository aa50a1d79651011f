"""Captured operators, added up by step, module and stage, and how near they come to what their processor can do.

Called by the table module_cost.  Compared with the peaks is the time in operators whose FLOPs and bytes are known, of
each type of arithmetic with its own peak.  Invariant: nothing is known of a sum if it is not known of a part that it
claims to have.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..arrays.integers import Bools, Ints, distinct, places
from ..host.peaks.known import Peak
from ..streams import ANNOTATION, BACKWARD, ON_DEVICE
from .operators import Operators
from .partition import Partition

Floats = npt.NDArray[np.float64]

STAGES = {1: "forward", 2: "backward", 3: "step"}
BOUNDS = {1: "compute", 2: "memory", 3: "launch", 4: "overhead"}
_LEAST_KNOWN = 0.5  # of the time, for a bound: what is not known might be the larger part
_LEAST_SHARE = 0.1  # of either peak: below it, neither of them is what it waits for
_LAUNCH = 2.0  # times the device's time: torch's profiler makes the host up to twice as slow
_WAITING = ("aten::_local_scalar_dense", "aten::copy_")  # may wait for the device: no time of launching


class Roofline:
    """Of a rank: one element of each array for each group of operators."""

    def __init__(self, part: Partition, peaks: Mapping[str, Peak]) -> None:
        self._part, self._peaks, found = part, peaks, Operators(part)
        counted = np.flatnonzero(found.rows["flags"] & ANNOTATION == 0)
        self._rows = found.rows.of(counted)
        self._own = found.own[counted]
        self._on_device = np.where(found.overwritten, np.nan, found.on_device[0])[counted]
        self._module, self._thread, self._begin = (each[counted] for each in (found.module, found.thread, found.start))
        self._launched = self._rows["flags"] & ON_DEVICE != 0
        self._group()

    def _group(self) -> None:
        timeline, flags = self._part.timeline, self._rows["flags"]
        step, in_eval = timeline.step(self._begin), timeline.in_eval(self._begin, self._thread)
        of_module = np.where(np.isin(self._module, list(self._part.log.optimizers)), 3, np.sign(np.abs(self._module)))
        stage = np.where(flags & BACKWARD != 0, 2, of_module)
        key = np.zeros(len(step), np.int64)
        for each in (step, self._module, stage, in_eval.astype(np.int64)):
            known = distinct(each)
            key = key * (len(known) + 1) + places(each, known)
        self._of = places(key, distinct(key))
        self.count = len(distinct(key))
        first = self._largest(-self._begin)
        self.start, self.step, self.in_eval = self._begin[first], step[first], in_eval[first]
        self.module, self.stage = self._module[first], stage[first]

    def _largest(self, values: Ints) -> Ints:
        """The row of each group's largest value."""
        rows, order = np.zeros(self.count, np.int64), np.argsort(values, kind="stable")
        rows[self._of[order]] = order  # of several the last one assigned stays
        return rows

    def _sum(self, values: Ints | Floats, where: Bools | None = None) -> Floats:
        chosen = slice(None) if where is None else where
        return np.bincount(self._of[chosen], values[chosen], self.count).astype(np.float64, copy=False)

    def _exact(self, values: Ints, where: Bools) -> Ints:
        sums = np.zeros(self.count, np.int64)
        np.add.at(sums, self._of[where], values[where])
        return sums

    @cached_property
    def operators(self) -> Ints:
        return np.bincount(self._of, minlength=self.count)

    @cached_property
    def host_s(self) -> Floats:
        return self._sum(self._own) / 1e9

    @cached_property
    def device_s(self) -> Floats:
        """NaN where kernels may have been overwritten."""
        return self._sum(self._on_device) / 1e9

    @cached_property
    def is_on_device(self) -> Bools:
        return self._sum(self._launched.astype(np.int64)) > 0

    @cached_property
    def _counts(self) -> Bools:
        """Where a group has launched something, only the operators that did."""
        counts: Bools = self._launched | ~self.is_on_device[self._of]
        return counts

    @cached_property
    def _known(self) -> Bools:
        known: Bools = self._counts & (self._rows["flops"] >= 0) & (self._rows["bytes"] >= 0)
        return known

    @cached_property
    def _time_s(self) -> Floats:
        """NaN where it is not known on what: then the host's time may be that of launching alone; and for how long."""
        took = np.where(self._launched, self._on_device, self._own) / 1e9
        return np.where(self._rows["processor"] == 0, np.nan, took)

    @cached_property
    def known_s(self) -> Floats:
        return np.where(np.isnan(self.device_s), np.nan, self._sum(self._time_s, self._known))

    @cached_property
    def known_share(self) -> Floats:
        """Of the time, that in operators whose FLOPs and bytes are known; NaN where it took none."""
        return _divided(self.known_s, self._sum(self._time_s, self._counts))

    @cached_property
    def has_cost(self) -> Bools:
        return self._sum(self._known.astype(np.int64)) > 0

    @cached_property
    def flops(self) -> Ints:
        return self._exact(self._rows["flops"], self._known)

    @cached_property
    def bytes(self) -> Ints:
        return self._exact(self._rows["bytes"], self._known)

    @cached_property
    def processor(self) -> Ints:
        """The string of what the longest operator of each group ran on, on a device if one did."""
        long = self._largest(np.where(self._counts, np.where(self._launched, self._on_device, self._own), -1))
        return self._rows["processor"][long]

    @cached_property
    def _ideal_s(self) -> tuple[Floats, Floats]:
        """What arithmetic and memory would take at the peaks; NaN where a peak is not known that counts."""
        flops_s, bytes_s = self._peak_of_each
        of_flops, of_bytes = _needed(self._rows["flops"], flops_s), _needed(self._rows["bytes"], bytes_s)
        return self._sum(of_flops, self._known), self._sum(of_bytes, self._known)

    @cached_property
    def _peak_of_each(self) -> tuple[Floats, Floats]:
        """By the operator's processor and type, of which there are few."""
        strings, processor, dtype = self._part.log.strings, self._rows["processor"], self._rows["dtype"]
        key = processor * (1 << 32) + dtype
        known = distinct(key)
        found = [self._peaks.get(strings.get(each >> 32, "")) for each in known.tolist()]
        types = [strings.get(each & 0xFFFFFFFF, "") for each in known.tolist()]
        flops = [peak.flops_s.get(dtype, np.nan) if peak else np.nan for peak, dtype in zip(found, types, strict=True)]
        sizes = [peak.bytes_s if peak else np.nan for peak in found]
        place = places(key, known)
        return np.array(flops, np.float64)[place], np.array(sizes, np.float64)[place]

    @cached_property
    def peak_share(self) -> Floats:
        """Of the peak that is nearer: the time that it alone would take, of the time that it took.  NaN: not known."""
        return _divided(np.maximum(*self._ideal_s), np.where(self.has_cost, self.known_s, 0))

    @cached_property
    def bound(self) -> Ints:
        """A key of BOUNDS; 0 where it is not known."""
        arithmetic, memory = self._ideal_s
        is_known = (self.known_share >= _LEAST_KNOWN) & ~np.isnan(self.peak_share)
        side = np.where(self.peak_share < _LEAST_SHARE, 4, np.where(arithmetic >= memory, 1, 2))
        return np.where(self._is_launching, 3, np.where(is_known, side, 0))

    @cached_property
    def _is_launching(self) -> Bools:
        strings = self._part.log.strings
        waiting = [key for key in distinct(self._rows["operator"]).tolist() if strings.get(key) in _WAITING]
        launching_s = self._sum(self._own, ~np.isin(self._rows["operator"], waiting)) / 1e9
        return self.is_on_device & (launching_s >= _LAUNCH * self.device_s)


def _needed(amount: Ints, peak: Floats) -> Floats:
    """Seconds; of nothing none, whatever the peak."""
    return np.where(amount > 0, amount / peak, 0.0)


def _divided(part: Floats, whole: Floats) -> Floats:
    """NaN where the whole is nothing."""
    result: Floats = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return result
