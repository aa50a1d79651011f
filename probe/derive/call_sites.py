"""CallSites of modules that several others call: an activation that is given to every block has one in each.

Called by torch_trace before it reads backward.  Invariant: the first place of a module bears its own number, and
a module with one caller has no other; so a job without shared modules pays for a look at its callers only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays.distinct import distinct
from ..arrays.dtypes import Bools, Ints
from ..arrays.nesting import NONE
from ..streams import BEGIN_SAME_NODE, END
from .backward import Calls
from .call_tree import CallTree
from .spans import Spans

_MOST = 10_000  # places; a module that calls itself ever deeper makes new ones without end
_FAR = 1 << 20  # more than any depth
_ROUNDS = 3  # of settling: a shared module inside a shared one is settled after it


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
        pairs = (self.of_calls[spans.caller[rows]] + _MOST * 2) * most + spans.subject[rows]
        known, inverse = np.unique(pairs, return_inverse=True)
        places = [self._place(pair // most - _MOST * 2, pair % most) for pair in known.tolist()]
        self.of_calls[rows] = np.array(places, np.int64)[inverse.reshape(-1)]
        return len(self.subjects) < _MOST

    def _place(self, above: int, subject: int) -> int:
        if self.parents.get(subject) == above:
            return subject
        place = -1 - len(self.subjects)
        self.parents[place], self.subjects[place] = above, subject
        return place


def settle(number: Ints, kind: Ints, module: Ints, tree: CallTree, calls: Calls) -> Ints:
    """The place of each mark, which come by pass and time; calls: the modules are places, as indices of the tree.

    A module begins where the caller is that has begun last, unless it has begun inside that one as often already as
    it is called there; it ends where it has begun last.
    """
    settled: Ints = module.copy()
    shared = tree.shared()
    rows_of = {first: np.flatnonzero(module == first) for first in shared}
    node = np.cumsum(kind != BEGIN_SAME_NODE) if shared else kind
    for _ in range(_ROUNDS if shared else 0):
        for first, places in shared.items():
            rows = rows_of[first]
            begins = rows[kind[rows] != END]
            until = np.searchsorted(node, node[begins], side="right") - 1
            callers = tree.parent[places]
            seen = [_begun(number, kind, settled, int(caller), begins, until, node, calls) for caller in callers]
            begun, since = (np.stack(each) for each in zip(*seen, strict=True))
            # of those that began at one node the innermost
            order = np.where(begun == NONE, NONE, node[begun] * _FAR + tree.depth[callers][:, None])
            inside = np.arange(len(begins)) - np.searchsorted(node[begins], node[since])
            most = np.array([_calls_inside(int(caller), places, tree, calls.module) for caller in callers])
            room = np.where(inside < most[:, None], order, NONE)
            best = np.where(room.max(axis=0) == NONE, order.argmax(axis=0), room.argmax(axis=0))
            settled[begins] = np.where(begun.max(axis=0) == NONE, first, places[best])
            ends = rows[kind[rows] == END]
            last = begins[np.maximum(np.searchsorted(begins, ends) - 1, 0)] if len(begins) else ends
            settled[ends] = np.where((last < ends) & (number[last] == number[ends]), settled[last], first)
    return settled


def _begun(
    number: Ints, kind: Ints, module: Ints, caller: int, rows: Ints, until: Ints, node: Ints, calls: Calls
) -> tuple[Ints, Ints]:
    """Which mark was the last begin of the caller, in the pass of each of these rows, and which one began the call
    that is under way: a call with several outputs begins at the node of each.  NONE if there was none."""
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
    each = -(-many // np.maximum(called, 1))  # as many of every call
    return np.where(known, found, NONE), np.where(known, nodes[at - (at - first) % each], NONE)


def _calls_inside(caller: int, places: Ints, tree: CallTree, calls: Ints) -> int:
    """How often a module is called within one call of the caller, by whomever."""
    there = calls[np.isin(calls, places)]
    inside = np.count_nonzero(tree.within(there, np.full(len(there), caller)))
    return -(-int(inside) // max(1, int(np.count_nonzero(calls == caller))))
