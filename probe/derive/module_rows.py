"""Module calls and their backwards, put together from spans and marks: what python.torch_trace has rows for.

Invariant: what the rows cannot tell (a caller that was running at the attach) comes from what the agent noted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..arrays.integers import NONE, Ints, distinct, first_places
from ..arrays.nesting import depth_below
from ..snapshot.rows import Rows
from ..streams import FORWARD, KIND_MASK
from .backward import Instances, Marks, Passes, place_marks
from .backward_batch import resolve_by_shape
from .call_tree import Calls, CallSites, CallTree, places_of_marks
from .device_times import DeviceTimes, Timed
from .partition import Partition
from .spans import Spans, noted_parents


def call_sites_of(part: Partition, spans: Spans, recorded: Rows) -> CallSites:
    """Where modules are called, as the calls themselves show, else as the agent noted.  recorded: recorded_marks()."""
    parents = noted_parents(part.log)
    for subjects in (recorded["subject"], spans.subject[spans.kind == FORWARD]):
        for subject in distinct(subjects).tolist():
            parents.setdefault(subject, 0)
    # a call whose caller was under way at the attach, or is at this moment, seems to have none
    shown = (spans.kind == FORWARD) & ~spans.recompute & ~spans.in_eval
    calls = np.flatnonzero(shown & (spans.caller != NONE))
    callers = spans.subject[spans.caller[calls]]
    part.require_agreement(spans.start[calls], spans.subject[calls] * (int(callers.max(initial=0)) + 1) + callers)
    subjects, first = first_places(spans.subject[calls])
    parents.update(zip(subjects.tolist(), callers[first].tolist(), strict=True))
    return CallSites.of(spans, shown, parents)


def passes_of(spans: Spans) -> tuple[Ints, Passes]:
    """Rows of the outermost engine spans by start, and the passes that they are."""
    rows = np.flatnonzero(spans.outermost_engine)
    rows = rows[np.argsort(spans.start[rows], kind="stable")]
    return rows, Passes(spans.start[rows], spans.end[rows], spans.rows["thread"][rows])


def _marks(recorded: Rows, passes: Passes, tree: CallTree, calls: Calls) -> Marks:
    time, thread = (np.ascontiguousarray(recorded[slot]) for slot in ("time_ns", "thread"))
    number = place_marks(time, thread, passes)
    rising = bool((number[1:] >= number[:-1]).all() and (time[1:] >= time[:-1]).all())
    if rising and (not len(number) or number[0] != NONE):  # as one thread leaves them
        order: Ints | slice = slice(None)
    else:
        kept = np.flatnonzero(number != NONE)
        order = kept[np.lexsort((time[kept], number[kept]))]
    kind, number = recorded["flags"][order] & KIND_MASK, number[order]
    module = places_of_marks(number, kind, tree.index(recorded["subject"][order]), tree, calls)
    return Marks(time[order], thread[order], kind, number, module)


def _roots(part: Partition, spans: Spans, passes: Passes, marks: Marks, tree: CallTree) -> Ints:
    """The outermost module of each pass: that of its first mark, else of the last call before it; 0 for none."""
    roots = np.zeros(len(passes.start), np.int64)
    calls = np.flatnonzero((spans.kind == FORWARD) & (spans.caller == NONE) & ~spans.recompute)
    calls = calls[np.argsort(spans.start[calls], kind="stable")]
    if len(calls):
        before = np.searchsorted(spans.start[calls], passes.start) - 1
        called = (before >= 0) & (part.owner(passes.start) == part.owner(spans.start[calls])[before])
        roots[called] = tree.index(spans.subject[calls[before[called]]])
    known = marks.module > 0
    number = marks.number[known]
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1])[: len(number)])
    roots[number[first]] = tree.chain[marks.module[known][first], 0]
    return roots


def backwards(
    part: Partition, spans: Spans, recorded: Rows, sites: CallSites, tree: CallTree, passes: Passes, engines: Ints,
    devices: DeviceTimes,
) -> tuple[Instances, Callable[[], Timed]]:  # fmt: skip
    """Every backward by the host's clock, and a function that gives their times by the devices' clocks."""
    calls = np.flatnonzero((spans.kind == FORWARD) & ~spans.recompute)
    before = np.searchsorted(passes.start, spans.start[calls])
    if len(passes.start):
        here = part.owner(passes.start)[np.minimum(before, len(passes.start) - 1)] == part.owner(spans.start[calls])
        before = np.where(here, before, len(passes.start))
    made = Calls(before, tree.index(sites.of_calls[calls]))
    marks = _marks(recorded, passes, tree, made)
    roots = _roots(part, spans, passes, marks, tree)

    def resolved(passes: Passes, marks: Marks, recomputed: tuple[Ints, Ints]) -> Instances:
        return resolve_by_shape(passes, marks, tree, roots, recomputed, made)

    found = resolved(passes, marks, spans.recomputed())
    return found, lambda: devices.of_backwards(passes, engines, marks, resolved)


def depths(spans: Spans, tree: CallTree) -> Ints:
    """The number of module calls around each span; a forward that checkpointing runs again has its first depth."""
    again = spans.recompute & (spans.caller == NONE)
    base = np.where(again, np.maximum(tree.depth[tree.index(spans.subject)], 0), 0)
    return depth_below(spans.nesting, spans.caller, base)
