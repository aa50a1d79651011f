"""Which span ran inside which: parents, depths and self times out of nothing but start, end and thread.

Called by what derives rows from spans, of which a million take some 0.3 s.  Invariant: spans of one thread are nested
or disjoint; where they are not (coroutines), the answer is still a tree, if not a meaningful one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .integers import NONE, Bools, Ints, distinct, places

_MANY = 8  # threads: one by one they take longer
_NEVER = 1 << 61


@dataclass(frozen=True)
class Nesting:
    """parent: row number of the directly containing span, NONE outside; level: how many contain it;
    generations: the row numbers of each level, outermost first, so that one may propagate downwards."""

    parent: Ints
    level: Ints
    generations: list[Ints]


def nest(start: Ints, end: Ints, thread: Ints) -> Nesting:
    """Rows come in order of completion, which decides between spans of the very same start."""
    parent = np.full(len(start), NONE, np.int64)
    level = np.zeros(len(start), np.int64)
    generations: list[list[Ints]] = []
    start, end, thread = _one_after_the_other(start, end, thread)
    for rows in _of_each_thread(thread):
        closings = np.maximum(end[rows], start[rows] + 1)[::-1]
        if not (closings[1:] >= closings[:-1]).all():
            closings = np.sort(closings)
        rows = rows[np.argsort(start[rows], kind="stable")]
        _nest_thread(rows, start[rows], closings, parent, level, generations)
    return Nesting(parent, level, [np.concatenate(parts) for parts in generations])


def _one_after_the_other(start: Ints, end: Ints, thread: Ints) -> tuple[Ints, Ints, Ints]:
    """Many threads as one, which does in turn what each of them does, where there is as much time."""
    known = distinct(thread)
    if len(known) < _MANY:
        return start, end, thread
    of = places(thread, known)
    begins, ends = np.full(len(known), _NEVER), np.full(len(known), -_NEVER)
    np.minimum.at(begins, of, start)
    np.maximum.at(ends, of, np.maximum(end, start))
    lengths = ends.astype(np.float64) - begins + 2
    if lengths.sum() > _NEVER or ends.max() > _NEVER >> 1 or begins.min() < -_NEVER >> 1:
        return start, end, thread
    shift = (np.cumsum(ends - begins + 2) - ends)[of]
    return start + shift, np.maximum(end, start) + shift, np.zeros_like(thread)


def _of_each_thread(thread: Ints) -> list[Ints]:
    """Row numbers of each thread, the last completed first: a stable sort by start then puts the outer one first."""
    backwards = np.arange(len(thread) - 1, -1, -1)
    if len(thread) == 0 or (thread == thread[0]).all():
        return [backwards] if len(thread) else []
    backwards = backwards[np.argsort(thread[backwards], kind="stable")]
    cuts = np.flatnonzero(np.diff(thread[backwards])) + 1
    return np.split(backwards, cuts)


def _nest_thread(
    rows: Ints, start: Ints, closings: Ints, parent: Ints, level: Ints, generations: list[list[Ints]]
) -> None:
    """rows: by start; closings: when one after the other ends."""
    closed = np.searchsorted(closings, start, side="right")
    depth = np.arange(len(rows)) - closed
    level[rows] = depth
    deepest = int(depth.max())
    by_depth = np.argsort(depth.astype(np.int16) if deepest < 1 << 15 else depth, kind="stable")  # short: by counting
    bounds = np.searchsorted(depth[by_depth], np.arange(deepest + 2))
    above: Ints = by_depth[:0]
    for generation, (low, high) in enumerate(pairwise(bounds)):
        here = by_depth[low:high]
        if generation == len(generations):
            generations.append([])
        if generation:
            parent[rows[here]] = rows[above[np.searchsorted(above, here) - 1]]
        generations[generation].append(rows[here])
        above = here


def united(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """These intervals, disjoint and sorted."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, until = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > until[:-1])
    return start[first], until[np.append(first[1:], True)]


def covered(times: Ints, start: Ints, end: Ints) -> Ints:
    """How much of the time before each moment these disjoint, sorted intervals take."""
    if not len(start):
        return np.zeros(len(times), np.int64)
    done = np.concatenate([[0], np.cumsum(end - start)])
    before = np.searchsorted(start, times, side="right")
    last = np.maximum(before - 1, 0)
    return np.where(before > 0, done[before] - np.maximum(end[last] - times, 0), 0)


def around(times: Ints, start: Ints, end: Ints) -> Ints:
    """The place of the interval around each moment, of disjoint and sorted ones; NONE outside."""
    if not len(start):
        return np.full(len(times), NONE, np.int64)
    place = np.searchsorted(start, times, side="right") - 1
    return np.where((place >= 0) & (times < end[place]), place, NONE)


def self_time(nesting: Nesting, total: Ints) -> Ints:
    """What of each span's time no directly contained span took."""
    inner = nesting.parent != NONE
    spent = np.bincount(nesting.parent[inner], weights=total[inner], minlength=len(total))
    return total - spent.astype(np.int64)


def ancestors_with(nesting: Nesting, marked: Bools) -> Bools:
    """Whether any span around each one is marked."""
    found = np.zeros(len(marked), np.bool_)
    for rows in nesting.generations[1:]:
        above = nesting.parent[rows]
        found[rows] = found[above] | marked[above]
    return found


def nearest(nesting: Nesting, marked: Bools) -> Ints:
    """Row number of the innermost marked span around each one, NONE where there is none."""
    found = np.full(len(marked), NONE, np.int64)
    for rows in nesting.generations[1:]:
        above = nesting.parent[rows]
        found[rows] = np.where(marked[above], above, found[above])
    return found


def outermost(nesting: Nesting, marked: Bools) -> Ints:
    """Row number of the outermost marked span around each one or itself, NONE where there is none."""
    found = np.where(marked, np.arange(len(marked)), NONE)
    for rows in nesting.generations[1:]:
        above = found[nesting.parent[rows]]
        found[rows] = np.where(above == NONE, found[rows], above)
    return found


def depth_below(nesting: Nesting, up: Ints, base: Ints) -> Ints:
    """1 + the depth of `up` (a nearest()) of each span, and base where it has none."""
    depth: Ints = base.copy()
    for rows in nesting.generations[1:]:
        above = up[rows]
        depth[rows] = np.where(above == NONE, base[rows], depth[above] + 1)
    return depth
