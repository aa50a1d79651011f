"""Backward passes: which module owns each moment of a pass, by the marks that autograd's hooks recorded.

Called by torch_trace.  A mark says that the backward of a module begins (autograd reached its output) or ends (autograd
is done with its input); a pass is an outermost call of the engine.  Invariant: the times that modules own in a pass add
up to the pass, without the forwards that checkpointing ran again inside it and the time that collectives blocked it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays.integers import NONE, Arrays, Bools, Ints, distinct, find
from ..arrays.nesting import covered
from ..streams import BEGIN, BEGIN_SAME_NODE, END
from .call_tree import Calls, CallTree

_FAR = 1 << 32  # more than any depth


@dataclass(frozen=True)
class Passes(Arrays):
    """Outermost calls of the autograd engine, by start."""

    start: Ints
    end: Ints
    thread: Ints


@dataclass(frozen=True)
class Marks(Arrays):
    """Marks inside passes, by pass and time; module: index in the tree."""

    time: Ints
    thread: Ints
    kind: Ints
    number: Ints  # of the pass
    module: Ints


Times = tuple[Ints, Ints]  # starts and ends, disjoint and sorted


@dataclass(frozen=True)
class Excluded:
    """Time in passes that is no module's: forwards that checkpointing ran again, in no total either; and with them
    replays of graphs, steps of optimizers and what collectives blocked, which are in the totals."""

    from_total: Times
    from_own: Times

    @classmethod
    def of(cls, times_of: Callable[[Bools], Times], again: Bools, with_rows: Bools) -> Excluded:
        """Of spans; the same times twice if these are the same spans, so that lengths are found once."""
        from_total = times_of(again)
        return cls(from_total, from_total if with_rows is again else times_of(with_rows))


class Instances:
    """One backward of one module in one pass: times in ns; `own` excludes what children, recomputation and collectives
    took.

    number: of the pass; module: index in the tree, 0 for a pass without any module.  The other arrays are made when
    they are first asked for, by name.
    """

    def __init__(self, number: Ints, module: Ints, make: Callable[[str], Ints]) -> None:
        self.number, self.module, self._make = number, module, make

    start: cached_property[Ints] = cached_property(lambda self: self._make("start"))
    thread: cached_property[Ints] = cached_property(lambda self: self._make("thread"))
    own: cached_property[Ints] = cached_property(lambda self: self._make("own"))
    total: cached_property[Ints] = cached_property(lambda self: self._make("total"))


def place_marks(time: Ints, thread: Ints, passes: Passes) -> Ints:
    """The pass of each mark, NONE outside: the one on its own thread, else the latest begun around it."""
    found = np.full(len(time), NONE, np.int64)
    if not len(passes.start):
        return found
    latest = _latest(passes.start, time)
    around = (latest >= 0) & (time <= passes.end[latest])
    found[around] = latest[around]
    threads = distinct(passes.thread)
    if len(threads) > 1:  # else it is the same
        most = len(passes.start) + 1
        keys = np.searchsorted(threads, passes.thread) * most + np.arange(len(passes.start))
        order = np.argsort(keys, kind="stable")
        code = np.minimum(np.searchsorted(threads, thread), len(threads) - 1)
        at = np.searchsorted(keys[order], code * most + latest, side="right") - 1
        own = order[np.maximum(at, 0)]
        inside = (at >= 0) & (passes.thread[own] == thread) & (time <= passes.end[own])
        found[inside] = own[inside]
    return found


def _latest(starts: Ints, time: Ints) -> Ints:
    """The place of the last start up to each moment, NONE before the first; by way of the fewer, where both rise."""
    if not (time[1:] >= time[:-1]).all():
        return np.searchsorted(starts, time, side="right") - 1
    bounds = np.searchsorted(time, starts, side="left")
    return np.repeat(np.arange(-1, len(starts)), np.diff(bounds, prepend=0, append=len(time)))


def owners(number: Ints, kind: Ints, module: Ints, tree: CallTree) -> Ints:
    """The module that owns the time after each mark, 0 for the pass itself.  Marks come by pass and time.

    BEGIN makes its module the owner.  END gives the time back to the module's caller, if the owner is the
    module itself or runs inside it: an END that comes late (its node also was the beginning of another
    module, or waited for a parallel branch) takes nothing away from whoever has begun since.
    """
    begins = kind == BEGIN
    opens = begins | _fresh(number)
    run = np.cumsum(opens)
    opener = np.where(begins, module, 0)[opens][run - 1]
    ends = (kind == END) & tree.within(opener, module)
    depth = np.where(ends, tree.depth[module] - 1, tree.depth[opener])
    depth = np.minimum.accumulate(depth - run * _FAR) + run * _FAR
    return np.where(depth < 0, 0, tree.chain[opener, np.maximum(depth, 0)])


def _fresh(number: Ints) -> Bools:
    """Whether each is another than the one before."""
    fresh = np.ones(len(number), np.bool_)
    fresh[1:] = number[1:] != number[:-1]
    return fresh


class Begins:
    """The begins of a job's modules, sorted by pass, module and node, so that any mark finds its instance.

    Marks of one node belong together: autograd calls the hooks of a node in the order of registration, so
    the BEGIN_SAME_NODE of the outer module follows the BEGIN of the inner one that belongs to it.
    A module with several outputs begins several times a call: the number of its calls limits its instances.
    """

    def __init__(self, marks: Marks, modules: int, calls: Calls) -> None:
        node = np.cumsum(marks.kind != BEGIN_SAME_NODE)
        begins = np.flatnonzero(marks.kind != END)
        self._modules, self._nodes = modules, len(marks.kind) + 1
        keys = self.owner_key(marks.number, marks.module)[begins] * self._nodes + node[begins]
        order = np.argsort(keys, kind="stable")
        self.node_of_marks = node
        self.rows = begins[order]
        self._keys = keys[order]
        self._owners = self._keys // self._nodes
        first = np.maximum.accumulate(np.where(_fresh(self._owners), np.arange(len(order)), 0))
        called, times = np.unique(self.owner_key(calls.number, calls.module), return_counts=True)
        limits = np.append(times, _FAR)[find(self._owners, called)]  # its calls, or any number if none was seen
        self.instances = np.minimum(np.arange(1, len(order) + 1) - first, limits)
        self.most = int(self.instances.max(initial=1)) + 1

    def owner_key(self, number: Ints, module: Ints) -> Ints:
        return number * self._modules + module

    def split(self, key: Ints) -> tuple[Ints, Ints]:
        """Pass and module of an instance's key."""
        number, module = np.divmod(key // self.most, self._modules)
        return number, module

    def find(self, number: Ints, module: Ints, node: Ints) -> tuple[Ints, Bools]:
        """Place (in rows) of the last begin of each module up to a node of its pass, and whether there is one."""
        owner = self.owner_key(number, module)
        place = np.searchsorted(self._keys, owner * self._nodes + node, side="right") - 1
        known = place >= 0
        known[known] = self._owners[place[known]] == owner[known]
        return place, known

    def key(self, number: Ints, module: Ints, node: Ints) -> Ints:
        """The instance that is under way; the first also for a module that never began by itself."""
        place, known = self.find(number, module, node)
        instance = np.ones(len(number), np.int64)
        instance[known] = self.instances[place[known]]
        return self.instance_key(number, module, instance)

    def instance_key(self, number: Ints, module: Ints, instance: Ints | int) -> Ints:
        return self.owner_key(number, module) * self.most + instance


@dataclass(frozen=True)
class _Parts(Arrays):
    """Pieces of instances: those with the same key are to be summed."""

    key: Ints
    node: Ints
    start: Ints
    thread: Ints
    own: Ints
    inner: Ints  # totals of children, and what collectives blocked

    def merged(self) -> _Parts:
        """One part an instance: the sums, the earliest start, the thread of the first."""
        if not len(self.key):
            return self
        parts = self.of(np.argsort(self.key, kind="stable"))
        at = np.flatnonzero(_fresh(parts.key))
        if len(at) == len(parts.key):
            return parts
        node, start = np.minimum.reduceat(parts.node, at), np.minimum.reduceat(parts.start, at)
        own, inner = np.add.reduceat(parts.own, at), np.add.reduceat(parts.inner, at)
        return _Parts(parts.key[at], node, start, parts.thread[at], own, inner)


def resolve(passes: Passes, marks: Marks, tree: CallTree, roots: Ints, excluded: Excluded, calls: Calls) -> Instances:
    """Every backward of every module, and each pass as the first instance of its root.

    marks by pass and time; roots: module of each pass, 0 for none.
    """
    begun = Begins(marks, len(tree.parent), calls)
    parts = _of_modules(passes, marks, tree, begun, excluded)
    number, _ = begun.split(parts.key)
    own, blocked = _own_and_blocked(passes.start, passes.end, excluded)
    own -= _sums(number, parts.own, len(own))
    blocked -= _sums(number, parts.inner, len(own))
    key = begun.instance_key(np.arange(len(roots)), roots, 1)
    parts = _Parts(key, np.zeros_like(key), passes.start, passes.thread, own, blocked).plus(parts)
    depth = tree.depth[begun.split(parts.key)[1]]
    order = np.argsort(depth, kind="stable")
    levels = int(depth.max(initial=-1)) + 2  # -1, a pass without modules, comes first
    bounds = np.searchsorted(depth[order], np.arange(-1, levels))
    parts, done = parts.of(order), list[_Parts]()
    below = parts.of(slice(0, 0))
    for level in range(levels - 1, -1, -1):
        here = parts.of(slice(bounds[level], bounds[level + 1])).plus(below).merged()
        done.append(here)
        below = _to_callers(here, tree, begun) if level > 1 else parts.of(slice(0, 0))
    parts = done[0].plus(*done[1:])
    made = {"start": parts.start, "thread": parts.thread, "own": parts.own, "total": parts.own + parts.inner}
    return Instances(*begun.split(parts.key), made.__getitem__)


def _of_modules(passes: Passes, marks: Marks, tree: CallTree, begun: Begins, excluded: Excluded) -> _Parts:
    """Modules that began, with the time they owned, then those that owned time without having begun themselves."""
    owner = owners(marks.number, marks.kind, marks.module, tree)
    until = passes.end[marks.number]  # from each mark to the next one of its pass, or to the end of the pass
    same = ~_fresh(marks.number)[1:]
    until[:-1][same] = marks.time[1:][same]
    length, blocked = _own_and_blocked(marks.time, until, excluded)
    rows = np.flatnonzero(owner > 0)
    place, known = begun.find(marks.number[rows], owner[rows], begun.node_of_marks[rows])
    own, inner = (_sums(place[known], each[rows[known]], len(begun.rows)) for each in (length, blocked))
    first, module = begun.rows, marks.module[begun.rows]
    key = begun.instance_key(marks.number[first], module, begun.instances)
    began = _parts(key, first, marks, begun, own, inner)
    rest = rows[~known]
    key = begun.instance_key(marks.number[rest], owner[rest], 1)
    return began.plus(_parts(key, rest, marks, begun, length[rest], blocked[rest]))


def _parts(key: Ints, rows: Ints, marks: Marks, begun: Begins, own: Ints, inner: Ints) -> _Parts:
    return _Parts(key, begun.node_of_marks[rows], marks.time[rows], marks.thread[rows], own, inner)


def _sums(number: Ints, values: Ints, count: int) -> Ints:
    return np.bincount(number, weights=values, minlength=count).astype(np.int64)


def _own_and_blocked(start: Ints, end: Ints, excluded: Excluded) -> tuple[Ints, Ints]:
    """The lengths of these stretches that are a module's own, and those that collectives blocked."""
    own = lengths(start, end, excluded.from_own)
    if excluded.from_own is excluded.from_total:
        return own, np.zeros_like(own)
    return own, lengths(start, end, excluded.from_total) - own


def lengths(start: Ints, end: Ints, without: Times) -> Ints:
    """The lengths of these stretches, without these times in them."""
    if not len(without[0]):
        return end - start
    return (end - start) - (covered(end, *without) - covered(start, *without))


def _to_callers(parts: _Parts, tree: CallTree, begun: Begins) -> _Parts:
    """What finished instances contribute to their callers'."""
    number, module = begun.split(parts.key)
    key = begun.key(number, tree.parent[module], parts.node)
    return _Parts(key, parts.node, parts.start, parts.thread, np.zeros_like(parts.own), parts.own + parts.inner)
