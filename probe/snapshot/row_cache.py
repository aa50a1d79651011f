"""Rows that a connection has read before, so that a later query asks only for newer ones.

Made by probe.snapshot.scans, one per stream of an agent.  Invariant: rows without gaps, none of which will change and
between which none will appear; views that were given out never change.
"""

from __future__ import annotations

import numpy as np

from ..arrays.integers import Ints
from ..streams import CHUNK_ROWS

_GROWTH = 1.25  # spare memory, so that not every query moves all rows


class RowCache:
    """next: the number of the first row that is not cached; whole: it begins where the agent's ring did."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._table: Ints = np.zeros((0, slots), np.int64)
        self._begin = self._end = 0
        self.next = 1
        self.whole = False

    @property
    def table(self) -> Ints:
        return self._table[self._begin : self._end]

    @property
    def bytes(self) -> int:
        return self._table.nbytes

    def begin(self, first: int, whole: bool) -> None:
        """Drop everything; the next rows will start at this number."""
        self._table = np.zeros((0, self._slots), np.int64)
        self._begin = self._end = 0
        self.next, self.whole = first, whole

    def take(self, fresh: Ints, first: int, last: int) -> Ints:
        """Append the rows that there were of the numbers `first` to `last`; all rows.

        Rows after a gap (a row that is not written yet) are in the result, but not cached: they will be read again.
        """
        if first > self.next:  # the ring has overwritten rows since
            self.begin(first, True)
        settled = _settled(fresh[:, -1], self.next, last)
        if settled:
            self._append(fresh[:settled])
            self.next = int(fresh[settled - 1, -1]) + 1
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
