"""The spans and marks of a partition as its modules made them, compiled ones too.

torch.compile(model) calls a wrapper, which calls the model; a backend may call its graph, too.  Used by torch_trace and
module_rows.  Invariant: a compiled call has one row, under the name of the module that was compiled; what runs eagerly
inside it, after a graph break, keeps its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays.integers import NONE, Bools, Ints, distinct
from ..arrays.nesting import Nesting, ancestors_with, nearest, nest, outermost, united
from ..snapshot.log import Log
from ..snapshot.rows import Rows
from ..streams import COMPILED, ENGINE, EVAL, FORWARD, GRAPH, KIND_MASK, MARKS, NO_GRAD, OPTIMIZER, SPANS, WAIT
from .partition import Partition

_GRAPHS = {"GraphModule", "<lambda>"}  # classes of modules that torch.fx makes of a graph


@dataclass(frozen=True)
class Spans:
    """One array a property, one element a span, in the order of completion.

    caller: row of the module call around each span, NONE outside; recompute: forwards that checkpointing ran again;
    inside_pass: what ran in a backward pass; autograd: the threads of autograd's own, which run passes of others.
    """

    rows: Rows
    start: Ints
    end: Ints
    subject: Ints
    kind: Ints
    nesting: Nesting
    caller: Ints
    recompute: Bools
    in_eval: Bools
    inside_pass: Bools
    outermost_engine: Bools
    autograd: Ints

    @classmethod
    def of(cls, part: Partition) -> Spans:
        rows = _without_wrappers(part)
        start, end, thread = (np.ascontiguousarray(rows[slot]) for slot in ("start_ns", "end_ns", "thread"))
        kind = rows["flags"] & KIND_MASK
        nesting = nest(start, end, thread)
        outer = _outermost(start, end, kind == ENGINE)
        inside = ancestors_with(nesting, kind == ENGINE)
        autograd, on_autograd = _on_autograd_threads(part, start, end, thread, kind == ENGINE, outer)
        inside |= on_autograd
        recompute = (kind == FORWARD) & inside
        in_eval = ancestors_with(nesting, kind == EVAL)
        caller = nearest(nesting, kind == FORWARD)
        subject = np.ascontiguousarray(rows["subject"])
        return cls(rows, start, end, subject, kind, nesting, caller, recompute, in_eval, inside, outer, autograd)

    @cached_property
    def outermost_call(self) -> Ints:
        """Row of the outermost module call around each span, itself one perhaps; NONE where there is none."""
        return outermost(self.nesting, self.kind == FORWARD)

    @cached_property
    def with_gradients(self) -> Bools:
        """The calls that a pass may go back through."""
        result: Bools = (self.kind == FORWARD) & ~self.recompute & (self.rows["flags"] & NO_GRAD == 0)
        return result

    @cached_property
    def in_backward(self) -> Bools:
        """What runs inside of passes and has rows of its own: forwards that run again, replays of graphs, and steps of
        optimizers that hooks make."""
        others = np.isin(self.kind, (GRAPH, OPTIMIZER)) & self.inside_pass
        return self.recompute | others if others.any() else self.recompute

    def times_of(self, chosen: Bools) -> tuple[Ints, Ints]:
        """Starts and ends of the time in these spans, disjoint and sorted."""
        return united(self.start[chosen], self.end[chosen])


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


def _on_autograd_threads(
    part: Partition, start: Ints, end: Ints, thread: Ints, is_pass: Bools, outermost: Bools
) -> tuple[Ints, Bools]:
    """Autograd's threads, and the spans that run on one during a pass.  They have marks, and no pass but within one of
    another thread, as where checkpointing goes back through what it has run again."""
    marked, rows = distinct(part.rows(MARKS)["thread"]), np.flatnonzero(outermost)
    rows = rows[np.argsort(start[rows], kind="stable")]
    marked = marked[~np.isin(marked, thread[rows])]
    if not len(marked) or not len(rows):
        return marked[:0], np.zeros(len(start), np.bool_)
    latest = np.searchsorted(start[rows], start, side="right") - 1
    around = rows[latest]
    during: Bools = (latest >= 0) & (start < end[around])
    within = during & (thread != thread[around]) & (end <= end[around])
    autograd = marked[~np.isin(marked, distinct(thread[is_pass & ~within]))]
    return autograd, during & np.isin(thread, autograd)


def _without_wrappers(part: Partition) -> Rows:
    """The spans except waits; a call of a wrapper becomes a call of the module that it wraps, marked as compiled."""
    rows, compiled = part.rows(SPANS), _compiled(part.log)
    waits = rows["flags"] & KIND_MASK == WAIT
    rows = rows.of(~waits) if waits.any() else rows
    if not compiled and not (rows["flags"] & COMPILED).any():
        return rows
    called = np.isin(rows["subject"], list(compiled)) & (rows["flags"] & KIND_MASK == FORWARD)
    if not called.any() and not (rows["flags"] & COMPILED).any():
        return rows
    made = Rows(rows.slots, rows.table.copy())
    made["flags"][called] |= COMPILED
    for wrapper, wrapped in compiled.items():
        if wrapped:
            made["subject"][rows["subject"] == wrapper] = wrapped
    return made.of(~_repeats(made, part.log))


def _repeats(rows: Rows, log: Log) -> Bools:
    """Calls that a compiled call makes of the very same module, or of a graph that the compiler made."""
    forward = rows["flags"] & KIND_MASK == FORWARD
    starts, ends, threads = (np.ascontiguousarray(rows[slot]) for slot in ("start_ns", "end_ns", "thread"))
    caller = nearest(nest(starts, ends, threads), forward)
    inside = forward & (caller != NONE) & (rows["flags"][caller] & COMPILED != 0)
    graphs = [subject for subject, module in log.modules.items() if module.get("type") in _GRAPHS]
    result: Bools = inside & ((rows["subject"] == rows["subject"][caller]) | np.isin(rows["subject"], graphs))
    return result


def recorded_marks(part: Partition) -> Rows:
    """The marks without those of wrappers, which repeat those of the module inside."""
    rows = part.rows(MARKS)
    wrappers = [wrapper for wrapper, wrapped in _compiled(part.log).items() if wrapped]
    return rows.of(~np.isin(rows["subject"], wrappers)) if wrappers else rows


def noted_parents(log: Log) -> dict[int, int]:
    """The caller of each module where the agent noted it, wrappers skipped."""
    compiled = {wrapper: wrapped for wrapper, wrapped in _compiled(log).items() if wrapped}
    found = {}
    for subject, module in log.modules.items():
        parent = int(module.get("parent") or 0)
        if compiled.get(parent) == subject:
            parent = int(log.modules[parent].get("parent") or 0)
        if subject not in compiled:
            found[subject] = compiled.get(parent, parent)
    return found


def _compiled(log: Log) -> dict[int, int]:
    """Wrapper -> the module in it, 0 where only compiled code ever called that."""
    return {subject: int(module["wraps"]) for subject, module in log.modules.items() if "wraps" in module}
