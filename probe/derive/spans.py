"""All spans of a partition: what they are, how they nest, and which are forwards that checkpointing ran again.

Made by torch_trace.  Invariant: one array a property, one element a span, in the order of completion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays.distinct import distinct
from ..arrays.dtypes import Bools, Ints
from ..arrays.nesting import Nesting, ancestors_with, nearest, nest
from ..snapshot.rows import Rows
from ..streams import ENGINE, EVAL, FORWARD, KIND_MASK, MARKS
from .compiled_regions import spans
from .partition import Partition


@dataclass(frozen=True)
class Spans:
    """caller: row of the module call around each span, NONE outside; recompute: forwards run again."""

    rows: Rows
    start: Ints
    end: Ints
    subject: Ints
    kind: Ints
    nesting: Nesting
    caller: Ints
    recompute: Bools
    in_eval: Bools
    outermost_engine: Bools

    @classmethod
    def of(cls, part: Partition) -> Spans:
        rows = spans(part)
        start, end, thread = (np.ascontiguousarray(rows[slot]) for slot in ("start_ns", "end_ns", "thread"))
        kind = rows["flags"] & KIND_MASK
        nesting = nest(start, end, thread)
        outer = _outermost(start, end, kind == ENGINE)
        inside = ancestors_with(nesting, kind == ENGINE)
        inside |= _on_autograd_threads(part, start, thread, kind, start[outer], end[outer])
        recompute = (kind == FORWARD) & inside
        in_eval = ancestors_with(nesting, kind == EVAL)
        caller = nearest(nesting, kind == FORWARD)
        subject = np.ascontiguousarray(rows["subject"])
        return cls(rows, start, end, subject, kind, nesting, caller, recompute, in_eval, outer)

    def recomputed(self) -> tuple[Ints, Ints]:
        """Starts and ends of the time in which checkpointing ran forwards again, disjoint and sorted."""
        return united(self.start[self.recompute], self.end[self.recompute])


def united(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """These intervals, disjoint and sorted."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, until = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > until[:-1])
    last = np.append(first[1:], True)
    return start[first], until[last]


def _outermost(start: Ints, end: Ints, chosen: Bools) -> Bools:
    """Which of the chosen spans begin outside all other chosen ones, whatever their thread."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    outer = np.zeros(len(start), np.bool_)
    if len(rows):
        latest = np.maximum.accumulate(end[rows])
        outer[rows[0]] = True
        outer[rows[1:][start[rows[1:]] >= latest[:-1]]] = True
    return outer


def _on_autograd_threads(part: Partition, start: Ints, thread: Ints, kind: Ints, begins: Ints, ends: Ints) -> Bools:
    """Spans that run during a pass on a thread of autograd's: one that has marks and no pass of its own."""
    marked, own = distinct(part.rows(MARKS)["thread"]), distinct(thread[kind == ENGINE])
    autograd = marked[~np.isin(marked, own)]
    if not len(autograd) or not len(begins):
        return np.zeros(len(start), np.bool_)
    order = np.argsort(begins, kind="stable")
    latest = np.searchsorted(begins[order], start, side="right") - 1
    during: Bools = (latest >= 0) & (start < ends[order][latest])
    return during & np.isin(thread, autograd)
