"""Compiled regions: torch.compile(model) calls a wrapper, which calls the model; a backend may call its graph, too.

Used by probe.derive.spans and torch_trace.  Invariant: a compiled call has one row, under the name of the module that
was compiled; what runs eagerly inside it, after a graph break, keeps its rows.
"""

from __future__ import annotations

import numpy as np

from ..arrays.dtypes import Bools, Ints
from ..arrays.nesting import NONE, nearest, nest
from ..snapshot.log import Log
from ..snapshot.rows import Rows
from ..streams import COMPILED, FORWARD, KIND_MASK, MARKS, SPANS, WAIT
from .partition import Partition

_GRAPHS = {"GraphModule", "<lambda>"}  # classes of modules that torch.fx makes of a graph


def spans(part: Partition) -> Rows:
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
    made["subject"][:] = _inside(rows["subject"], compiled)
    return Rows(made.slots, made.table[~_repeats(made, part.log)])


def marks(part: Partition) -> Rows:
    """The marks without those of wrappers, which repeat those of the module inside."""
    rows = part.rows(MARKS)
    wrappers = [wrapper for wrapper, wrapped in _compiled(part.log).items() if wrapped]
    return Rows(rows.slots, rows.table[~np.isin(rows["subject"], wrappers)]) if wrappers else rows


def parents(log: Log) -> dict[int, int]:
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


def _inside(subjects: Ints, compiled: dict[int, int]) -> Ints:
    result: Ints = subjects.copy()
    for wrapper, wrapped in compiled.items():
        if wrapped:
            result[subjects == wrapper] = wrapped
    return result


def _repeats(rows: Rows, log: Log) -> Bools:
    """Calls that a compiled call makes of the very same module, or of a graph that the compiler made."""
    forward = rows["flags"] & KIND_MASK == FORWARD
    starts, ends, threads = (np.ascontiguousarray(rows[slot]) for slot in ("start_ns", "end_ns", "thread"))
    caller = nearest(nest(starts, ends, threads), forward)
    inside = forward & (caller != NONE) & (rows["flags"][caller] & COMPILED != 0)
    graphs = [subject for subject, module in log.modules.items() if module.get("type") in _GRAPHS]
    result: Bools = inside & ((rows["subject"] == rows["subject"][caller]) | np.isin(rows["subject"], graphs))
    return result
