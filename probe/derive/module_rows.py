"""Module calls and their backwards, put together from spans and marks: what python.torch_trace has rows for.

Invariant: what the rows cannot tell (a caller that was running at the attach) comes from what the agent noted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..arrays.integers import NONE, Ints, distinct, first_places
from ..arrays.nesting import around, depth_below, nearest, nest, united
from ..snapshot.rows import Rows
from ..streams import FORWARD, KIND_MASK
from .backward import Excluded, Instances, Marks, Passes, Times, place_marks
from .backward_batch import resolve_by_shape
from .blocking import Blocking
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
    before = calls_before(part, spans, passes)
    called = before != NONE
    roots[called] = tree.index(spans.subject[before[called]])
    known = marks.module > 0
    number = marks.number[known]
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1])[: len(number)])
    roots[number[first]] = tree.chain[marks.module[known][first], 0]
    return roots


def calls_before(part: Partition, spans: Spans, passes: Passes) -> Ints:
    """The row of the last outermost call before each pass, NONE if there is none."""
    calls = np.flatnonzero(spans.with_gradients & (spans.caller == NONE))
    if not len(calls):
        return np.full(len(passes.start), NONE, np.int64)
    calls = calls[np.argsort(spans.start[calls], kind="stable")]
    before = np.searchsorted(spans.start[calls], passes.start) - 1
    called = (before >= 0) & (part.owner(passes.start) == part.owner(spans.start[calls])[before])
    return np.where(called, calls[before], NONE)


@dataclass(frozen=True)
class Callers:
    """The module calls around moments of a thread: the innermost one's subject (0 for none), how many there are, and
    the row of the outermost one (NONE)."""

    caller: Ints
    depth: Ints
    outermost: Ints


def callers_of(moments: Ints, thread: Ints, spans: Spans, tree: CallTree) -> Callers:
    """What was being called at these moments."""
    of_spans = spans.start, spans.end, spans.rows["thread"]
    nesting = nest(*map(np.append, of_spans, (moments, moments, thread)))
    is_call = np.append(spans.kind == FORWARD, np.zeros(len(moments), np.bool_))
    row = nearest(nesting, is_call)[len(spans.start) :]
    called, row = row != NONE, np.maximum(row, 0)
    if not called.any():
        return Callers(np.zeros(len(row), np.int64), np.zeros(len(row), np.int64), np.full(len(row), NONE))
    return Callers(
        np.where(called, spans.subject[row], 0),
        np.where(called, depths(spans, tree)[row] + 1, 0),
        np.where(called, spans.outermost_call[row], NONE),
    )


def backwards(
    part: Partition, spans: Spans, recorded: Rows, sites: CallSites, tree: CallTree, passes: Passes, engines: Ints,
    devices: DeviceTimes, blocking: Blocking,
) -> tuple[Instances, Callable[[], Timed]]:  # fmt: skip
    """Every backward by the host's clock, and a function that gives their times by the devices' clocks."""
    calls = np.flatnonzero(spans.with_gradients)
    before = np.searchsorted(passes.start, spans.start[calls])
    if len(passes.start):
        here = part.owner(passes.start)[np.minimum(before, len(passes.start) - 1)] == part.owner(spans.start[calls])
        before = np.where(here, before, len(passes.start))
    made = Calls(before, tree.index(sites.of_calls[calls]))
    marks = _marks(recorded, passes, tree, made)
    roots = _roots(part, spans, passes, marks, tree)

    def resolved(passes: Passes, marks: Marks, excluded: Excluded) -> Instances:
        return resolve_by_shape(passes, marks, tree, roots, excluded, made)

    excluded = Excluded.of(spans.times_of, spans.recompute, spans.in_backward)
    away = _away(excluded.from_own, blocking, passes, spans.autograd)
    found = resolved(passes, marks, replace(excluded, from_own=away))
    return found, lambda: devices.of_backwards(passes, engines, marks, resolved)


def _away(with_rows: Times, blocking: Blocking, passes: Passes, autograd: Ints) -> Times:
    """The time that is no module's own in passes: with other rows, or blocked by collectives on a thread that runs the
    pass, its own or one of autograd's."""
    place = around(blocking.start, passes.start, passes.end)
    inside = place != NONE
    thread = blocking.thread[inside]
    inside[inside] = (passes.thread[place[inside]] == thread) | np.isin(thread, autograd)
    if not inside.any():
        return with_rows
    of_passes = blocking.start[inside], blocking.end[inside]
    return united(*map(np.concatenate, zip(with_rows, of_passes, strict=True)))


def depths(spans: Spans, tree: CallTree) -> Ints:
    """The number of module calls around each span; a forward that checkpointing runs again has its first depth."""
    again = spans.recompute & (spans.caller == NONE)
    base = np.where(again, np.maximum(tree.depth[tree.index(spans.subject)], 0), 0)
    return depth_below(spans.nesting, spans.caller, base)
