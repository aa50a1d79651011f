"""The calls of a profile as one tree, which a flame graph draws.

Called by flame_page and speedscope with the rows of a profile, or of two for their difference.  Invariant: pure; the
total of the root is SUM(seconds), and a node's total is its own time and its children's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays.integers import Arrays, Ints, distinct, places
from .profile_rows import SCHEMA, ProfileRows, functions_of

Floats = npt.NDArray[np.float64]
NO_STACK, FOLDED = "(no stack)", "(smaller ones)"
MOST_NODES = 500_000  # a file of some 10 MB, which a browser opens in about a second


@dataclass(frozen=True)
class Cells(Arrays):
    """Time of a profile (side 0, or 1 for the one before) in a phase, with a node as the innermost call."""

    node: Ints
    phase: Ints
    side: Ints
    seconds: Floats
    samples: Ints

    @classmethod
    def summed(cls, node: Ints, phase: Ints, side: Ints, seconds: Floats, samples: Ints) -> Cells:
        """One for each node, phase and side."""
        phases = int(phase.max(initial=0)) + 1
        key = (node * 2 + side) * phases + phase
        known = distinct(key)
        sums = [np.bincount(places(key, known), column, len(known)) for column in (seconds, samples)]
        of = known // phases // 2, known % phases, known // phases % 2
        return cls(*of, np.asarray(sums[0], np.float64), np.asarray(sums[1], np.int64))


@dataclass(frozen=True)
class Flame:
    """Nodes, each after its parent; the first is the root.  frame: what a node calls, a place in `frames`.

    phases: their names, None for what is in no known one.  ranks: of all sides; if there are several, they are the
    root's children.  has_threads: whether the next level are threads.
    """

    frames: list[str]
    parent: Ints
    frame: Ints
    cells: Cells
    phases: list[str | None]
    ranks: list[int]
    has_threads: bool

    def totals(self, side: int = 0) -> Floats:
        """Seconds of each node and all below it."""
        mine = self.cells.of(self.cells.side == side)
        total = np.bincount(mine.node, mine.seconds, len(self.parent)).tolist()
        for node, parent in zip(range(len(total) - 1, 0, -1), self.parent[:0:-1].tolist(), strict=True):
            total[parent] += total[node]
        return np.array(total)

    def rows(self, side: int = 0) -> Any:
        """Of a profile, as ProfileRows has them: one for each cell."""
        cells = self.cells.of(self.cells.side == side)
        frames, parents, names = self.frame.tolist(), self.parent.tolist(), self.frames
        columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
        for node in cells.node.tolist():
            path = []
            while node:
                path.append(names[frames[node]])
                node = parents[node]
            columns["rank"].append(int(path.pop().removeprefix("rank ")) if self.ranks[1:] else self.ranks[0])
            columns["thread"].append(path.pop() if self.has_threads else None)
            columns["stack"].append(path[::-1] if path != [NO_STACK] else None)
        columns["phase"] = [self.phases[phase] for phase in cells.phase.tolist()]
        return pa.table(columns | {"seconds": cells.seconds, "samples": cells.samples}, SCHEMA)


def flame(sides: Sequence[ProfileRows], most_nodes: int = MOST_NODES) -> Flame:
    """Of a profile, and of the one before if there are two.  Frames are functions: their lines are added up.

    Of more nodes than allowed, the lightest are folded into one child of each of their callers.
    """
    rows = pa.concat_tables([each.rows for each in sides]).combine_chunks()
    side = np.repeat(np.arange(len(sides)), [len(each.rows) for each in sides])
    ranks = sorted({rank for each in sides for rank in each.ranks})
    phase, phases = _coded(rows["phase"])
    if not all(each.has_phases for each in sides):  # of a file that does not tell them
        phase, phases = phase * 0, [None]
    tree = _Tree()
    node = np.zeros(len(rows), np.int64)
    if ranks[1:]:
        node = tree.below(node, np.searchsorted(ranks, rows["rank"].to_numpy()), [f"rank {rank}" for rank in ranks])
    if has_threads := any(each.has_threads for each in sides):
        node = tree.below(node, *_coded(rows["thread"]))
    labels = tree.size
    node = tree.stacks_below(node, rows["stack"].combine_chunks())
    cells = Cells.summed(node, phase, side, *(rows[name].to_numpy() for name in ("seconds", "samples")))
    whole = Flame(tree.frames, *tree.nodes(), cells, phases, ranks, has_threads)
    return whole if tree.size <= most_nodes else _folded(whole, most_nodes // 2, labels)


class _Tree:
    """Nodes, added level by level."""

    def __init__(self) -> None:
        self.frames: list[str] = [""]
        self._places = {"": 0}
        self._levels: list[tuple[Ints, Ints]] = [(np.array([0]), np.array([0]))]
        self.size = 1

    def nodes(self) -> tuple[Ints, Ints]:
        """Parents and frames."""
        parents, frames = zip(*self._levels, strict=True)
        return np.concatenate(parents), np.concatenate(frames)

    def below(self, nodes: Ints, codes: Ints, names: Sequence[str]) -> Ints:
        """The child of each node that has that name."""
        return self._below(nodes, self._known(names)[codes])

    def stacks_below(self, nodes: Ints, stacks: Any) -> Ints:
        """The innermost node of each stack."""
        depth = np.asarray(pc.list_value_length(stacks).fill_null(0), np.int64)
        functions, names = functions_of(stacks)
        frames = self._known(names)[functions]
        first = np.cumsum(depth) - depth
        missing, nodes = depth == 0, nodes.copy()
        if missing.any():
            nodes[missing] = self._below(nodes[missing], np.full(missing.sum(), self._known([NO_STACK])[0]))
        for level in range(int(depth.max(initial=0))):
            deep = np.flatnonzero(depth > level)
            nodes[deep] = self._below(nodes[deep], frames[first[deep] + level])
        return nodes

    def _below(self, nodes: Ints, frames: Ints) -> Ints:
        key = nodes * len(self.frames) + frames
        known = distinct(key)
        self._levels.append((known // len(self.frames), known % len(self.frames)))
        self.size += len(known)
        return self.size - len(known) + places(key, known)

    def _known(self, names: Sequence[str]) -> Ints:
        """The places of these frames."""
        for name in names:
            if name not in self._places:
                self._places[name] = len(self.frames)
                self.frames.append(name)
        return np.array([self._places[name] for name in names], np.int64)


def _coded(texts: Any) -> tuple[Ints, list[Any]]:
    """The place of each text among those that there are, None too, and these."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    coded = texts.dictionary_encode("encode")
    return coded.indices.to_numpy().astype(np.int64), coded.dictionary.to_pylist()


def _folded(whole: Flame, most: int, labels: int) -> Flame:
    """The heaviest nodes of either side, and a child of each for what is no longer there below it.

    labels: so many nodes, the first ones, are no calls, and stay.
    """
    weight = np.maximum(whole.totals(0), whole.totals(1))
    kept = np.zeros(len(weight), bool)
    kept[np.argsort(-weight, kind="stable")[:most]] = True  # a parent weighs as much as its child and stands before it
    kept[:labels] = True
    above = np.where(kept, np.arange(len(kept)), whole.parent)
    while not kept[above].all():
        above = above[above]
    callers = distinct(above[~kept])
    numbers = np.cumsum(kept) - 1
    place = np.where(kept, numbers, kept.sum() + np.searchsorted(callers, above))
    cells = whole.cells
    return replace(
        whole,
        frames=[*whole.frames, FOLDED],
        parent=np.append(numbers[whole.parent[kept]], numbers[callers]),
        frame=np.append(whole.frame[kept], np.full(len(callers), len(whole.frames))),
        cells=Cells.summed(place[cells.node], cells.phase, cells.side, cells.seconds, cells.samples),
    )
