"""Operators that captures have seen: their own times, those of their kernels, and the modules they ran in.

Called by the tables op_trace, kernel_trace and module_cost.  Invariant: own times never overlap on a thread, so they
can be summed; a module is known from the calls that the agent recorded meanwhile, or there is none.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..arrays.integers import NONE, Bools, Ints, find
from ..arrays.nesting import nearest, nest
from ..streams import FORWARD, KERNELS, ON_DEVICE, OPERATORS, OPTIMIZER
from .partition import Partition
from .spans import Spans


class Operators:
    """Of a rank: one element of each array for each row of the stream of operators."""

    def __init__(self, part: Partition) -> None:
        self.rows, self._part = part.rows(OPERATORS), part
        self.start, self.seq = self.rows["start_ns"], self.rows["seq"]
        self.total: Ints = self.rows["end_ns"] - self.start
        self.caller = find(self.rows["caller"], self.seq)  # row of the one around each, NONE outside
        self.thread = idents_of(part, self.rows["native_id"])

    @cached_property
    def own(self) -> Ints:
        """ns that no operator inside took."""
        return self.total - self._summed(self.caller, self.total)

    @cached_property
    def on_device(self) -> tuple[Ints, Bools]:
        """ns that kernels ran which it launched itself, and whether it launched any, all of which are known."""
        kernels = self._part.rows(KERNELS)
        of = find(kernels["operator"], self.seq)
        return self._summed(of, kernels["end_ns"] - kernels["start_ns"]), np.isin(
            np.arange(len(self.seq)), of
        ) & ~self.overwritten

    @cached_property
    def overwritten(self) -> Bools:
        """Whether kernels that it launched may be no longer in their ring: it began before the oldest one left ran."""
        kernels, launched = self._part.rows(KERNELS), self.rows["flags"] & ON_DEVICE != 0
        if not len(kernels) or int(kernels["seq"][0]) <= 1:
            return np.zeros(len(self.seq), np.bool_)
        result: Bools = launched & (self.start < kernels["start_ns"][0])
        return result

    def _summed(self, of: Ints, values: Ints) -> Ints:
        """The sum of the values that belong to each row."""
        known = of != NONE
        summed = np.bincount(of[known], weights=values[known], minlength=len(self.seq))
        return summed.astype(np.int64)

    @cached_property
    def module(self) -> Ints:
        """Subject of the module or optimizer in whose call it ran; of a backward that of the operator that made its
        node; 0 where none is known."""
        rows, middle = self.rows, self.start + self.total // 2
        made = idents_of(self._part, rows["made_native_id"])
        moments, threads = np.append(middle, rows["made_ns"]), np.append(self.thread, made)
        here, there = np.split(_subjects_at(self._part, moments, threads), 2)
        return np.where(here != 0, here, there)


def idents_of(part: Partition, native_ids: Ints) -> Ints:
    """The threads as all other rows have them; 0 for one that Python did not start."""
    known = sorted((each["native_id"], ident) for ident, each in part.log.threads.items() if each.get("native_id"))
    natives, idents = (np.array([pair[side] for pair in known], np.int64) for side in (0, 1))
    place = find(native_ids, natives)
    return np.where(place == NONE, 0, np.append(idents, 0)[place])


def _subjects_at(part: Partition, moments: Ints, threads: Ints) -> Ints:
    """Of the innermost call around each moment."""
    spans = Spans.of(part)
    is_call = np.isin(spans.kind, (FORWARD, OPTIMIZER))
    of_spans = spans.start[is_call], spans.end[is_call], spans.rows["thread"][is_call]
    nesting = nest(*map(np.append, of_spans, (moments, moments, threads)))
    calls = len(of_spans[0])
    row = nearest(nesting, np.arange(calls + len(moments)) < calls)[calls:]
    return np.where(row == NONE, 0, np.append(spans.subject[is_call], 0)[row])
