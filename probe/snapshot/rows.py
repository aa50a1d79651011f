"""Rows of one raw stream: an array whose columns are named after the stream's slots."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from ..arrays.integers import Bools, Ints


class Rows:
    """Rows of one stream, complete ones only, by number; rows["start_ns"] is a view of that slot."""

    def __init__(self, slots: Sequence[str], table: Ints) -> None:
        self.slots = tuple(slots)
        self.table = table

    def __getitem__(self, slot: str) -> Ints:
        return self.table[:, self.slots.index(slot)]

    def __len__(self) -> int:
        return len(self.table)

    def of(self, chosen: Ints | Bools | slice) -> Rows:
        """The chosen rows, in that order."""
        return Rows(self.slots, self.table[chosen])

    def since(self, slot: str, value: int) -> Rows:
        """The rows from about one before the first with at least this value, as agents cut them
        (agent/storage/rows.py)."""
        times = self[slot]
        return self.of(slice(max(0, bisect_left(times, value) - 1), None))


def complete(table: Ints, first: int) -> Ints:
    """Without rows that are not written yet or overwritten: those whose number is not that of their place."""
    valid: Bools = table[:, -1] == np.arange(first, first + len(table))
    return table if valid.all() else table[valid]
