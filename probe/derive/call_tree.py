"""Which module calls which, as a tree that vectorised code can walk; and where modules are called.

A module that several others call, such as a shared activation, has a place under each.  Made by torch_trace of what
spans and the log show, read by probe.derive.backward.  Invariant: the first place of a module bears the module's own
number, and a module with one caller has no other place, so a job without shared modules only pays for a look at its
callers; index 0 of the tree stands for no module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..arrays.integers import NONE, Arrays, Bools, Ints, distinct, find
from ..streams import BEGIN_SAME_NODE, END
from .spans import Spans

_WIDE = 1 << 22  # serial numbers between the first and the last module
_MAX_PLACES = 10_000  # a module that calls itself ever deeper makes new ones without end
_FAR = 1 << 20  # more than any depth
_ROUNDS = 3  # a shared module inside a shared one is placed in the round after its caller


@dataclass(frozen=True)
class CallTree:
    """Modules as they call each other.  index 0 stands for no module; parent, depth by index (depth[0] = -1);
    chain[i, d]: the ancestor of i at depth d, i itself at its own depth, 0 beyond."""

    places: Ints  # sorted; of the first place of a subject the subject itself
    subjects: Ints  # of the places
    parent: Ints
    depth: Ints
    chain: Ints

    @classmethod
    def of(cls, parents: dict[int, int], subjects: Mapping[int, int] = MappingProxyType({})) -> CallTree:
        """From place -> place of the caller, 0 for none; subjects: of other than first places.  A cycle is cut."""
        places = np.array(sorted(set(parents) | (set(parents.values()) - {0})), np.int64)
        place = {each: i + 1 for i, each in enumerate(places.tolist())}
        parent = np.zeros(len(places) + 1, np.int64)
        for subject, above in parents.items():
            parent[place[subject]] = place.get(above, 0)
        lines = [_path_to(parent, i) for i in range(len(parent))]
        chain = np.zeros((len(parent), max(map(len, lines), default=0) + 1), np.int64)
        for i, line in enumerate(lines):
            chain[i, : len(line)] = line
            parent[i] = line[-2] if len(line) > 1 else 0
        of_places = np.array([subjects.get(each, each) for each in places.tolist()], np.int64)
        return cls(places, of_places, parent, np.array([len(line) - 1 for line in lines], np.int64), chain)

    def index(self, subjects: Ints) -> Ints:
        """Index of each place, or first place of a subject; 0 for one that is not in the tree."""
        if not len(self.places):
            return np.zeros(len(subjects), np.int64)
        low, high = int(self.places[0]), int(self.places[-1])
        if high - low > _WIDE:
            return find(subjects, self.places) + 1
        indices = np.zeros(high - low + 3, np.int64)  # with a 0 on either side
        indices[self.places - low + 1] = np.arange(1, len(self.places) + 1)
        return indices[np.clip(subjects - low + 1, 0, len(indices) - 1)]

    def shared(self) -> dict[int, Ints]:
        """Index of the first place -> indices of all places, of subjects that have several, outer ones first."""
        others = np.flatnonzero(self.places != self.subjects)
        first = self.index(self.subjects[others])
        order = distinct(first)
        order = order[np.argsort(self.depth[order], kind="stable")]
        return {each: np.append(each, others[first == each] + 1) for each in order.tolist()}

    def subject(self, index: Ints) -> Ints:
        """The subject at each index, 0 at index 0."""
        return np.append(np.zeros(1, np.int64), self.subjects)[index]

    def within(self, index: Ints, above: Ints) -> Bools:
        """Whether `above` is `index` itself or an ancestor of it (index 0 is neither)."""
        result: Bools = (above > 0) & (self.chain[index, self.depth[above]] == above)
        return result


def _path_to(parent: Ints, i: int) -> list[int]:
    """From the outermost ancestor down to i."""
    line: list[int] = []
    while i and i not in line:
        line.append(i)
        i = int(parent[i])
    return line[::-1]


@dataclass(frozen=True)
class Calls(Arrays):
    """Forward calls, each with the pass before which it ran (the next one) and its module's index in the tree."""

    number: Ints
    module: Ints


@dataclass(frozen=True)
class CallSites:
    """Where modules are called.  of_calls: the place of each span, its subject where it has no other."""

    of_calls: Ints
    parents: dict[int, int]  # place -> place of the caller, 0 for none
    subjects: dict[int, int]  # of places other than the first

    @classmethod
    def of(cls, spans: Spans, calls: Bools, parents: dict[int, int]) -> CallSites:
        """calls: those whose callers count; parents: the first caller of each module."""
        first = CallSites(spans.subject, parents, {})
        rows = np.flatnonzero(calls & (spans.caller != NONE))
        callers = spans.subject[spans.caller[rows]]
        most = int(spans.subject.max(initial=0)) + 1
        pairs = distinct(spans.subject[rows] * most + callers)
        if len(distinct(pairs // most)) == len(pairs):
            return first
        found = cls(spans.subject.copy(), dict(parents), {})
        for generation in spans.nesting.generations[1:]:
            if not found._take(spans, generation[calls[generation] & (spans.caller[generation] != NONE)]):
                return first
        return found

    def _take(self, spans: Spans, rows: Ints) -> bool:
        """Give the calls of one generation their places; False if there are too many."""
        most = int(spans.subject.max(initial=0)) + 1
        pairs = (self.of_calls[spans.caller[rows]] + _MAX_PLACES * 2) * most + spans.subject[rows]
        known, inverse = np.unique(pairs, return_inverse=True)
        places = [self._place(pair // most - _MAX_PLACES * 2, pair % most) for pair in known.tolist()]
        self.of_calls[rows] = np.array(places, np.int64)[inverse.reshape(-1)]
        return len(self.subjects) < _MAX_PLACES

    def _place(self, above: int, subject: int) -> int:
        """The subject's place below a caller's place, a new one if there is none yet."""
        if self.parents.get(subject) == above:
            return subject
        place = -1 - len(self.subjects)
        self.parents[place], self.subjects[place] = above, subject
        return place


def places_of_marks(number: Ints, kind: Ints, module: Ints, tree: CallTree, calls: Calls) -> Ints:
    """The place of each mark; marks come by pass (number) and time.  calls: with places, as indices of the tree.

    A mark names a module but not its caller.  The backward of a shared module belongs to the caller whose backward
    began last, unless it has already begun inside that one as often as the caller calls it; then to the last caller
    with calls left.  A module ends where it began last.
    """
    placed: Ints = module.copy()
    shared = tree.shared()
    if not shared:
        return placed
    rows_of = {first: np.flatnonzero(module == first) for first in shared}
    node = np.cumsum(kind != BEGIN_SAME_NODE)  # marks of one node of autograd have one number
    for _ in range(_ROUNDS):
        for first, places in shared.items():
            rows = rows_of[first]
            begins, ends = rows[kind[rows] != END], rows[kind[rows] == END]
            placed[begins] = _begun_at(number, kind, placed, node, begins, places, tree, calls)
            last = begins[np.maximum(np.searchsorted(begins, ends) - 1, 0)] if len(begins) else ends
            placed[ends] = np.where((last < ends) & (number[last] == number[ends]), placed[last], first)
    return placed


def _begun_at(
    number: Ints, kind: Ints, placed: Ints, node: Ints, begins: Ints, places: Ints, tree: CallTree, calls: Calls
) -> Ints:
    """At which of its places a shared module began, at each of these marks; at the first where no caller has begun."""
    until = np.searchsorted(node, node[begins], side="right") - 1
    callers = tree.parent[places]
    seen = [_last_begin(number, kind, placed, int(caller), begins, until, node, calls) for caller in callers]
    begun, since = (np.stack(each) for each in zip(*seen, strict=True))  # a row for each caller
    # the caller that began last; of those that began at one node the innermost
    order = np.where(begun == NONE, NONE, node[begun] * _FAR + tree.depth[callers][:, None])
    inside = np.arange(len(begins)) - np.searchsorted(node[begins], node[since])  # how often it has begun in the caller
    most = np.array([_calls_inside(int(caller), places, tree, calls.module) for caller in callers])
    room = np.where(inside < most[:, None], order, NONE)
    best = np.where(room.max(axis=0) == NONE, order.argmax(axis=0), room.argmax(axis=0))
    found: Ints = np.where(begun.max(axis=0) == NONE, places[0], places[best])
    return found


def _last_begin(
    number: Ints, kind: Ints, module: Ints, caller: int, rows: Ints, until: Ints, node: Ints, calls: Calls
) -> tuple[Ints, Ints]:
    """For each of these marks, two earlier ones of its pass, NONE if there are none: the last begin of the caller, and
    the begin of the caller's call that is in progress.  A call with several outputs begins at the node of each."""
    begins = np.flatnonzero((module == caller) & (kind != END))
    if not len(begins) or not caller:
        return (np.full(len(rows), NONE, np.int64),) * 2
    place = np.searchsorted(begins, until, side="right") - 1
    found = begins[np.maximum(place, 0)]
    known = (place >= 0) & (number[found] == number[rows])
    nodes = begins[np.append(True, np.diff(node[begins]) > 0)]
    at = np.searchsorted(nodes, found, side="right") - 1
    first = np.searchsorted(number[nodes], number[found])
    many = np.searchsorted(number[nodes], number[found], side="right") - first
    called = np.bincount(calls.number[calls.module == caller], minlength=int(number.max()) + 1)[number[found]]
    of_each_call = -(-many // np.maximum(called, 1))  # begins, taken to be as many for every call
    return np.where(known, found, NONE), np.where(known, nodes[at - (at - first) % of_each_call], NONE)


def _calls_inside(caller: int, places: Ints, tree: CallTree, calls: Ints) -> int:
    """How often the module with these places is called within one call of the caller, directly or not."""
    there = calls[np.isin(calls, places)]
    inside = np.count_nonzero(tree.within(there, np.full(len(there), caller)))
    return -(-int(inside) // max(1, int(np.count_nonzero(calls == caller))))
