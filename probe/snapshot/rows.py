"""Rows of one raw stream, as an array whose columns have the names of the stream's slots."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from ..arrays.dtypes import Bools, Ints


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
        """As an agent cuts them (agent/storage/rows.py): from the row before the first one, about, of which this is no
        less."""
        times = self[slot]
        return self.of(slice(max(0, bisect_left(times, value) - 1), None))


def complete(table: Ints, first: int) -> Ints:
    """Drop rows that are not written yet or not any more: those that do not bear the number of their place."""
    valid: Bools = table[:, -1] == np.arange(first, first + len(table))
    return table if valid.all() else table[valid]
