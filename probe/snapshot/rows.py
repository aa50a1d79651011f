"""Rows of one raw stream, and the cache of those that a connection has read before.

Used by everything that reads rows; probe.snapshot.scans keeps one cache per stream of an agent, so that a later query
asks only for newer rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from ..arrays.integers import Bools, Ints
from ..streams import CHUNK_ROWS

_GROWTH = 1.25  # spare memory, so that not every query moves all rows


class Rows:
    """Complete rows of one stream by number, an array whose columns are named after the slots: rows["start_ns"] is a
    view of one."""

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


class RowCache:
    """Rows without gaps, none of which will change and between which none will appear; views of it never change.

    next: the number of the first row that is not cached; whole: it begins where the agent's ring did.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.begin(1, whole=False)

    @property
    def table(self) -> Ints:
        return self._table[self._begin : self._end]

    @property
    def bytes(self) -> int:
        return self._table.nbytes

    def begin(self, first: int, whole: bool) -> None:
        """Drop everything; the next rows will start at this number."""
        self._table: Ints = np.zeros((0, self._slots), np.int64)
        self._begin = self._end = 0
        self.next, self.whole = first, whole

    def take(self, fresh: Ints, first: int, last: int) -> Ints:
        """Append the rows that there were of the numbers `first` to `last`; all rows up to there, though the cache may
        have newer ones, which a snapshot of an earlier moment must not show.

        Rows after a gap (a row that is not written yet) are in the result, but not cached: they will be read again.
        """
        if first > self.next:  # the ring has overwritten rows since
            self.begin(first, True)
        settled = _settled(fresh[:, -1], self.next, last)
        if settled:
            self._append(fresh[:settled])
            self.next = int(fresh[settled - 1, -1]) + 1
        if last < self.next - 1:
            return self.table[: np.searchsorted(self.table[:, -1], last, side="right")]
        return self.table if settled == len(fresh) else np.concatenate([self.table, fresh[settled:]])

    def drop_before(self, first: int) -> None:
        """Drop rows with lower numbers: the agent's ring has overwritten them too."""
        self._begin += int(np.searchsorted(self.table[:, -1], first))

    def _append(self, fresh: Ints) -> None:
        if self._end == self._begin:
            self._table, self._begin, self._end = fresh, 0, len(fresh)
            return
        if self._end + len(fresh) > len(self._table):
            rows = self._end - self._begin
            moved = np.empty((int((rows + len(fresh)) * _GROWTH), self._slots), np.int64)
            moved[:rows] = self.table
            self._table, self._begin, self._end = moved, 0, rows
        self._table[self._end : self._end + len(fresh)] = fresh
        self._end += len(fresh)


def _settled(numbers: Ints, first: int, last: int) -> int:
    """How many of these rows are final: none can appear between them.  A place skipped long ago stays empty."""
    late = max(first, last - CHUNK_ROWS)  # no older row is still being written
    place = int(np.searchsorted(numbers, late))
    gaps = np.flatnonzero(numbers[place:] != np.arange(late, late + len(numbers) - place))
    return place + int(gaps[0]) if len(gaps) else len(numbers)
