"""Which module calls which, as a tree that vectorised code can walk.

Made by torch_trace of what spans and the log show, read by probe.derive.backward.  Invariant: a subject's own index is
that of the first place in which it was seen to be called (probe.derive.call_sites); index 0 stands for no module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..arrays.distinct import distinct
from ..arrays.dtypes import Bools, Ints

_WIDE = 1 << 22  # serial numbers between the first and the last module


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
        lines = [_line(parent, i) for i in range(len(parent))]
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
            place = np.minimum(np.searchsorted(self.places, subjects), len(self.places) - 1)
            return np.where(self.places[place] == subjects, place + 1, 0)
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


def _line(parent: Ints, i: int) -> list[int]:
    """From the outermost ancestor down to i."""
    line: list[int] = []
    while i and i not in line:
        line.append(i)
        i = int(parent[i])
    return line[::-1]
