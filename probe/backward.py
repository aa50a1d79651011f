"""Backward passes: whose time each moment of a pass is, out of the marks that autograd left on its way.

Called by torch_trace.  The marks say when the backward of a module began (autograd reached its output)
and ended (it is through with its input); a pass is an outermost call of the engine.  Invariant: what the
modules of a pass own adds up to the pass, less the forward that checkpointing ran again inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .nesting import NONE, Bools, Ints
from .streams import BEGIN, BEGIN_SAME_NODE, END

_FAR = 1 << 32  # more than any depth


@dataclass(frozen=True)
class Tree:
    """Modules as they call each other.  index 0 stands for no module; parent, depth by index (depth[0] = -1);
    chain[i, d]: the ancestor of i at depth d, i itself at its own depth, 0 beyond."""

    subjects: Ints
    parent: Ints
    depth: Ints
    chain: Ints

    @classmethod
    def of(cls, parents: dict[int, int]) -> Tree:
        """From subject -> subject of the caller, 0 for none.  A cycle is cut."""
        subjects = np.array(sorted(set(parents) | (set(parents.values()) - {0})), np.int64)
        place = {subject: i + 1 for i, subject in enumerate(subjects.tolist())}
        parent = np.zeros(len(subjects) + 1, np.int64)
        for subject, above in parents.items():
            parent[place[subject]] = place.get(above, 0)
        lines = [_line(parent, i) for i in range(len(parent))]
        chain = np.zeros((len(parent), max(map(len, lines), default=0) + 1), np.int64)
        for i, line in enumerate(lines):
            chain[i, : len(line)] = line
            parent[i] = line[-2] if len(line) > 1 else 0
        return cls(subjects, parent, np.array([len(line) - 1 for line in lines], np.int64), chain)

    def index(self, subjects: Ints) -> Ints:
        """Index of each subject, 0 for one that is not in the tree."""
        if not len(self.subjects):
            return np.zeros(len(subjects), np.int64)
        place = np.minimum(np.searchsorted(self.subjects, subjects), len(self.subjects) - 1)
        found: Ints = np.where(self.subjects[place] == subjects, place + 1, 0)
        return found

    def subject(self, index: Ints) -> Ints:
        """The subject at each index, 0 at index 0."""
        return np.append(np.zeros(1, np.int64), self.subjects)[index]

    def within(self, index: Ints, above: Ints) -> Bools:
        """Whether `above` is `index` itself or an ancestor of it (index 0 is neither)."""
        result: Bools = (above > 0) & (self.chain[index, self.depth[above]] == above)
        return result


def _line(parent: Ints, i: int) -> list[int]:
    """From the outermost ancestor down to i."""
    line: list[int] = []
    while i and i not in line:
        line.append(i)
        i = int(parent[i])
    return line[::-1]


@dataclass(frozen=True)
class Passes:
    """Outermost calls of the autograd engine, by start."""

    start: Ints
    end: Ints
    thread: Ints


@dataclass(frozen=True)
class Marks:
    """Marks inside passes, by pass and time; module: index in the tree."""

    time: Ints
    thread: Ints
    kind: Ints
    number: Ints  # of the pass
    module: Ints


@dataclass(frozen=True)
class Calls:
    """Forward calls, each with the pass before which it ran (the next one) and its module's index in the tree."""

    number: Ints
    module: Ints


@dataclass(frozen=True)
class Instances:
    """One backward of one module in one pass: times in ns; `own` excludes what children and recomputation took."""

    number: Ints  # of the pass
    module: Ints  # index in the tree, 0: a pass without any module
    start: Ints
    thread: Ints
    own: Ints
    total: Ints


def covered(times: Ints, start: Ints, end: Ints) -> Ints:
    """How much of the time before each moment these disjoint, sorted intervals take."""
    if not len(start):
        return np.zeros(len(times), np.int64)
    done = np.concatenate([[0], np.cumsum(end - start)])
    before = np.searchsorted(start, times, side="right")
    last = np.maximum(before - 1, 0)
    beyond = np.maximum(end[last] - times, 0)
    result: Ints = np.where(before > 0, done[before] - beyond, 0)
    return result


def place_marks(time: Ints, thread: Ints, passes: Passes) -> Ints:
    """The pass of each mark, NONE outside: the one on its own thread, else the latest begun around it."""
    found = np.full(len(time), NONE, np.int64)
    if not len(passes.start):
        return found
    latest = np.searchsorted(passes.start, time, side="right") - 1
    around = (latest >= 0) & (time <= passes.end[latest])
    found[around] = latest[around]
    for ident in np.unique(passes.thread):
        own = np.flatnonzero(passes.thread == ident)
        mine = np.flatnonzero(thread == ident)
        at = np.searchsorted(passes.start[own], time[mine], side="right") - 1
        inside = (at >= 0) & (time[mine] <= passes.end[own][at])
        found[mine[inside]] = own[at[inside]]
    return found


def owners(number: Ints, kind: Ints, module: Ints, tree: Tree) -> Ints:
    """Who owns the time after each mark, 0: the pass itself.  Marks come by pass and time.

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
    result: Ints = np.where(depth < 0, 0, tree.chain[opener, np.maximum(depth, 0)])
    return result


def _fresh(number: Ints) -> Bools:
    """Whether each is another than the one before."""
    fresh = np.ones(len(number), np.bool_)
    fresh[1:] = number[1:] != number[:-1]
    return fresh


class Counter:
    """How often a module has begun in a pass, up to any mark of it.

    Marks of one node belong together: autograd calls the hooks of a node in the order of registration, so
    the BEGIN_SAME_NODE of the outer module follows the BEGIN of the inner one that belongs to it.
    A module with several outputs begins several times a call: `calls` limits the count.
    """

    def __init__(self, marks: Marks, modules: int, calls: Calls) -> None:
        self.node = np.cumsum(marks.kind != BEGIN_SAME_NODE)
        self._modules, self._nodes = modules, len(marks.kind) + 1
        begin = marks.kind != END
        self._keys = np.sort(self._key(marks.number[begin], marks.module[begin], self.node[begin]))
        self._limited, self._limits = np.unique(calls.number * modules + calls.module, return_counts=True)

    def _key(self, number: Ints, module: Ints, node: Ints) -> Ints:
        key: Ints = (number * self._modules + module) * self._nodes + node
        return key

    def instance(self, number: Ints, module: Ints, node: Ints) -> Ints:
        """From 1; 1 also for a module that never began by itself."""
        upto = np.searchsorted(self._keys, self._key(number, module, node), side="right")
        count = upto - np.searchsorted(self._keys, self._key(number, module, np.zeros_like(node)))
        if len(self._limited):
            key = number * self._modules + module
            place = np.minimum(np.searchsorted(self._limited, key), len(self._limited) - 1)
            count = np.where(self._limited[place] == key, np.minimum(count, self._limits[place]), count)
        result: Ints = np.maximum(count, 1)
        return result


@dataclass
class _Parts:
    """Pieces of instances, to be summed: keys, and for each what the piece adds."""

    number: Ints
    module: Ints
    instance: Ints
    node: Ints
    start: Ints
    thread: Ints
    own: Ints
    inner: Ints  # totals of children

    def of(self, rows: Ints | Bools) -> _Parts:
        return _Parts(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def plus(self, other: _Parts) -> _Parts:
        names = self.__dataclass_fields__
        return _Parts(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))

    def merged(self) -> _Parts:
        """One part an instance: sums of times, the earliest start with its thread."""
        order = np.lexsort((self.start, self.instance, self.module, self.number))
        parts = self.of(order)
        if not len(order):
            return parts
        fresh = _fresh(parts.number) | _fresh(parts.module) | _fresh(parts.instance)
        at = np.flatnonzero(fresh)
        merged = parts.of(at)
        merged.own, merged.inner = np.add.reduceat(parts.own, at), np.add.reduceat(parts.inner, at)
        merged.node = np.minimum.reduceat(parts.node, at)
        return merged


def resolve(
    passes: Passes, marks: Marks, tree: Tree, roots: Ints, recomputed: tuple[Ints, Ints], calls: Calls
) -> Instances:
    """Every backward of every module, and each pass as the first instance of its root.

    marks by pass and time; roots: module of each pass, 0 for none; recomputed: starts and ends of the
    forwards that checkpointing ran inside passes, disjoint and sorted.
    """
    counter = Counter(marks, len(tree.parent), calls)
    parts = _begun(marks, counter).plus(_owned(passes, marks, tree, counter, recomputed))
    passes_own = _lengths(passes.start, passes.end, recomputed)
    passes_own -= np.bincount(parts.number, weights=parts.own, minlength=len(passes_own)).astype(np.int64)
    parts = parts.plus(_of_passes(passes, roots, passes_own))
    done: list[_Parts] = []
    depth = tree.depth[parts.module]
    for level in range(int(depth.max(initial=-1)), -2, -1):
        here = parts.of(depth == level).merged()
        done.append(here)
        if level > 0:
            parts = parts.of(depth < level).plus(_to_parents(here, tree, counter))
            depth = tree.depth[parts.module]
    return _instances(done)


def _begun(marks: Marks, counter: Counter) -> _Parts:
    begin = marks.kind != END
    number, module, node = marks.number[begin], marks.module[begin], counter.node[begin]
    nothing = np.zeros(len(number), np.int64)
    instance = counter.instance(number, module, node)
    return _Parts(number, module, instance, node, marks.time[begin], marks.thread[begin], nothing, nothing)


def _owned(passes: Passes, marks: Marks, tree: Tree, counter: Counter, recomputed: tuple[Ints, Ints]) -> _Parts:
    owner = owners(marks.number, marks.kind, marks.module, tree)
    last = np.append(_fresh(marks.number)[1:], np.ones(min(1, len(owner)), np.bool_))
    until = np.where(last, passes.end[marks.number], np.append(marks.time[1:], 0)[: len(owner)])
    length = _lengths(marks.time, until, recomputed)
    rows = np.flatnonzero(owner > 0)
    number, module, node = marks.number[rows], owner[rows], counter.node[rows]
    instance = counter.instance(number, module, node)
    own, nothing = length[rows], np.zeros(len(rows), np.int64)
    return _Parts(number, module, instance, node, marks.time[rows], marks.thread[rows], own, nothing)


def _lengths(start: Ints, end: Ints, recomputed: tuple[Ints, Ints]) -> Ints:
    return (end - start) - (covered(end, *recomputed) - covered(start, *recomputed))


def _of_passes(passes: Passes, roots: Ints, own: Ints) -> _Parts:
    number = np.arange(len(roots))
    ones, nothing = np.ones_like(number), np.zeros_like(number)
    return _Parts(number, roots, ones, nothing, passes.start, passes.thread, own, nothing)


def _to_parents(parts: _Parts, tree: Tree, counter: Counter) -> _Parts:
    """What finished instances add to those of their callers."""
    module = tree.parent[parts.module]
    instance = counter.instance(parts.number, module, parts.node)
    nothing, inner = np.zeros_like(parts.own), parts.own + parts.inner
    return _Parts(parts.number, module, instance, parts.node, parts.start, parts.thread, nothing, inner)


def _instances(done: list[_Parts]) -> Instances:
    def joined(name: str) -> Ints:
        return np.concatenate([getattr(parts, name) for parts in done] or [np.zeros(0, np.int64)])

    own = joined("own")
    return Instances(joined("number"), joined("module"), joined("start"), joined("thread"), own, own + joined("inner"))
