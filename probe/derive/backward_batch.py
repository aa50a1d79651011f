"""Backward passes of the same shape, resolved together: a training repeats the same pass step after step.

Called by probe.derive.module_rows in place of probe.derive.backward.resolve(), which it uses.  The shape of a pass is
the order in which modules begin and end in it.  The marks cut a pass into stretches of time, and which module owns a
stretch follows from the shape alone.  So times are linear: the time of each module is a sum of stretches, always the
same ones.  Which ones, resolve() tells once for each shape, by unit vectors: it is given one pass for each stretch, in
which that stretch takes 1 ns and all others take none.  The passes of a shape are then one product of matrices.
Invariant: the instances are those of resolve(), in another order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from ..arrays.integers import Ints
from .backward import Excluded, Instances, Marks, Passes, lengths, resolve
from .call_tree import Calls, CallTree

LEAST = 8  # passes of a shape; for fewer a matrix is not worth its cost
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

Times = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.uint64]


def resolve_by_shape(
    passes: Passes, marks: Marks, tree: CallTree, roots: Ints, excluded: Excluded, calls: Calls
) -> Instances:
    """The same as probe.derive.backward.resolve()."""
    first = np.searchsorted(marks.number, np.arange(len(passes.start) + 1))
    done, left = list[Instances](), np.ones(len(passes.start), np.bool_)
    for members in _shapes(marks, first, roots, calls):
        shape = _Shape.of(members[0], marks, first, tree, roots, calls)
        done.append(shape.instances(members, passes, marks, first, excluded))
        left[members] = False
    rest = np.flatnonzero(left)
    if len(rest) or not done:
        done.append(_some(rest, passes, marks, tree, roots, excluded, calls))
    if len(done) == 1:
        return done[0]

    def joined(name: str) -> Ints:
        return np.concatenate([getattr(each, name) for each in done])

    return Instances(joined("number"), joined("module"), joined)


def _shapes(marks: Marks, first: Ints, roots: Ints, calls: Calls) -> list[Ints]:
    """The passes of each frequent shape, most frequent first, as long as the unit passes have no more marks than the
    passes themselves."""
    shape = _hashes(marks, first, roots, calls)
    order = np.argsort(shape, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(shape[order])) + 1) if len(order) else []
    length = np.diff(first)
    room, found = len(marks.time), list[Ints]()
    for members in sorted(groups, key=len, reverse=True):
        room -= (int(length[members[0]]) + 2) ** 2
        if len(members) < LEAST or room < 0:
            break
        found.append(members)
    return found


def _hashes(marks: Marks, first: Ints, roots: Ints, calls: Calls) -> Numbers:
    """A number for each pass, equal for passes of the same shape (64 bits: collisions are not to be expected)."""
    place = np.arange(len(marks.time)) - first[marks.number]
    codes = np.arange(8 * (int(marks.module.max(initial=0)) + 1), dtype=np.uint64)
    at = np.arange(int(place.max(initial=0)) + 1, dtype=np.uint64)
    of_code, of_place = _mixed(codes * _MIX[0] + np.uint64(1)), _mixed(at * _MIX[1] + np.uint64(3))
    sums = np.zeros(len(marks.time) + 1, np.uint64)
    np.cumsum(of_code[marks.module * 8 + np.minimum(marks.kind, 7)] * (of_place | np.uint64(1))[place], out=sums[1:])
    found: Numbers = sums[first[1:]] - sums[first[:-1]]
    called = np.zeros(len(roots) + 1, np.uint64)
    np.add.at(called, calls.number, _mixed(calls.module.astype(np.uint64) * _MIX[1] + np.uint64(1)))
    found += called[: len(roots)] * _MIX[2] + _mixed(roots.astype(np.uint64) + np.uint64(7)) * _MIX[1]
    return found


def _mixed(values: Numbers) -> Numbers:
    values = (values ^ (values >> np.uint64(30))) * _MIX[1]
    values = (values ^ (values >> np.uint64(27))) * _MIX[2]
    result: Numbers = values ^ (values >> np.uint64(31))
    return result


@dataclass(frozen=True)
class _Shape:
    """What the instances of every pass of a shape have in common, one element or row for each instance.

    start, thread: where they are read, 0 for the pass and i for its i-th mark; own, total: matrices of instances by
    stretches, 1 where the instance owns the stretch or has it in its total.
    """

    module: Ints
    start: Ints
    thread: Ints
    own: Times
    total: Times

    @classmethod
    def of(cls, one: int, marks: Marks, first: Ints, tree: CallTree, roots: Ints, calls: Calls) -> _Shape:
        """By one pass for each stretch, in which all others are empty, and a last one whose times and threads are the
        numbers of the marks, which tells where starts and threads are read."""
        rows = np.arange(first[one], first[one + 1])
        count = len(rows) + 1
        numbers = np.arange(count + 1)
        times = (np.arange(len(rows)) >= numbers[:, None]).astype(np.int64)
        times[-1] = np.arange(1, count)
        zeros = np.zeros(count + 1, np.int64)
        unit_passes = Passes(zeros, np.where(numbers < count, 1, count), zeros)
        unit_marks = Marks(
            times.reshape(-1),
            np.tile(np.arange(1, count), count + 1),
            np.tile(marks.kind[rows], count + 1),
            np.repeat(numbers, len(rows)),
            np.tile(marks.module[rows], count + 1),
        )
        called = calls.module[calls.number == one]
        unit_calls = Calls(np.repeat(numbers, len(called)), np.tile(called, count + 1))
        of_each, none = np.full(count + 1, roots[one]), np.zeros(0, np.int64)
        nothing = none, none
        found = resolve(unit_passes, unit_marks, tree, of_each, Excluded(nothing, nothing), unit_calls)
        order = np.argsort(found.number, kind="stable").reshape(count + 1, -1)
        last = order[-1]
        own, total = (values[order[:-1]].T.astype(np.float64) for values in (found.own, found.total))
        return cls(found.module[last], found.start[last], found.thread[last], own, total)

    def instances(self, members: Ints, passes: Passes, marks: Marks, first: Ints, excluded: Excluded) -> Instances:
        rows = first[members][:, None] + np.arange(self.own.shape[1] - 1)

        @cache
        def times() -> Ints:
            return np.column_stack([passes.start[members], marks.time[rows], passes.end[members]])

        def stretches(without: tuple[Ints, Ints]) -> Times:
            begins, ends = times()[:, :-1].reshape(-1), times()[:, 1:].reshape(-1)
            # as floats: a pass of three months is still exact
            return lengths(begins, ends, without).reshape(len(members), -1).astype(np.float64)

        def make(name: str) -> Ints:
            if name == "start":
                return times()[:, self.start].reshape(-1)
            if name == "thread":
                return np.column_stack([passes.thread[members], marks.thread[rows]])[:, self.thread].reshape(-1)
            is_own = name == "own"
            each, without = (self.own, excluded.from_own) if is_own else (self.total, excluded.from_total)
            found: Ints = np.rint(stretches(without) @ each.T).astype(np.int64)
            return found.reshape(-1)

        return Instances(np.repeat(members, len(self.module)), np.tile(self.module, len(members)), make)


def _some(
    rest: Ints, passes: Passes, marks: Marks, tree: CallTree, roots: Ints, excluded: Excluded, calls: Calls
) -> Instances:
    """These passes by resolve() alone."""
    if len(rest) == len(passes.start):
        return resolve(passes, marks, tree, roots, excluded, calls)
    place = np.full(len(passes.start) + 1, -1, np.int64)
    place[rest] = np.arange(len(rest))
    marks, calls = marks.of(place[marks.number] >= 0), calls.of(place[calls.number] >= 0)
    marks, calls = replace(marks, number=place[marks.number]), replace(calls, number=place[calls.number])
    found = resolve(passes.of(rest), marks, tree, roots[rest], excluded, calls)
    return Instances(rest[found.number], found.module, partial(getattr, found))
