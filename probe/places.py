"""Places of modules that several others call: an activation that is given to every block has one in each.

Called by torch_trace before it reads backward.  Invariant: the first place of a module bears its own number, and
a module with one caller has no other; so a job without shared modules pays for a look at its callers only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .nesting import NONE, Bools, Ints
from .spans import Spans
from .streams import BEGIN_SAME_NODE, END
from .tree import Tree

_MOST = 10_000  # places; a module that calls itself ever deeper makes new ones without end
_ROUNDS = 3  # of settling: a shared module inside a shared one is settled after it


@dataclass(frozen=True)
class Places:
    """Where modules are called.  of_calls: the place of each span, its subject where it has no other."""

    of_calls: Ints
    parents: dict[int, int]  # place -> place of the caller, 0 for none
    subjects: dict[int, int]  # of places other than the first

    @classmethod
    def of(cls, spans: Spans, calls: Bools, parents: dict[int, int]) -> Places:
        """calls: those whose callers count; parents: the first caller of each module."""
        first = Places(spans.subject, parents, {})
        rows = np.flatnonzero(calls & (spans.caller != NONE))
        callers = spans.subject[spans.caller[rows]]
        pairs = np.unique(np.stack([spans.subject[rows], callers], axis=1), axis=0) if len(rows) else rows
        if len(np.unique(pairs[:, 0] if len(rows) else rows)) == len(pairs):
            return first
        found = cls(spans.subject.copy(), dict(parents), {})
        for generation in spans.nesting.generations[1:]:
            if not found._take(spans, generation[calls[generation] & (spans.caller[generation] != NONE)]):
                return first
        return found

    def _take(self, spans: Spans, rows: Ints) -> bool:
        """Give the calls of one generation their places; False if there are too many."""
        pairs = np.stack([self.of_calls[spans.caller[rows]], spans.subject[rows]], axis=1)
        known, inverse = np.unique(pairs, axis=0, return_inverse=True)
        places = [self._place(above, subject) for above, subject in known.tolist()]
        self.of_calls[rows] = np.array(places, np.int64)[inverse.reshape(-1)]
        return len(self.subjects) < _MOST

    def _place(self, above: int, subject: int) -> int:
        if self.parents.get(subject) == above:
            return subject
        place = -1 - len(self.subjects)
        self.parents[place], self.subjects[place] = above, subject
        return place


def settle(number: Ints, kind: Ints, module: Ints, tree: Tree) -> Ints:
    """The place of each mark: of several, the one whose caller has begun last.  Marks come by pass and time."""
    shared = tree.shared()
    if not shared:
        return module
    node = np.cumsum(kind != BEGIN_SAME_NODE)
    last: Ints = np.searchsorted(node, node, side="right") - 1  # mark of each node
    settled: Ints = module.copy()
    rows_of = {first: np.flatnonzero(module == first) for first in shared}
    for _ in range(_ROUNDS):
        for first, places in shared.items():
            rows = rows_of[first]
            begun = np.stack([_begun(number, kind, settled, int(tree.parent[at]), rows, last[rows]) for at in places])
            settled[rows] = np.where(begun.max(axis=0) == NONE, first, places[begun.argmax(axis=0)])
    return settled


def _begun(number: Ints, kind: Ints, module: Ints, caller: int, rows: Ints, until: Ints) -> Ints:
    """Which mark was the last begin of the caller, in the pass of each of these rows; NONE if there was none."""
    begins = np.flatnonzero((module == caller) & (kind != END))
    if not len(begins) or not caller:
        return np.full(len(rows), NONE, np.int64)
    place = np.searchsorted(begins, until, side="right") - 1
    found = begins[np.maximum(place, 0)]
    result: Ints = np.where((place >= 0) & (number[found] == number[rows]), found, NONE)
    return result
