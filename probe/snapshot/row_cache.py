"""Rows that a connection has read before: a later query asks for those that have come since.

Made by probe.snapshot.wire_source, one a stream of an agent.  Invariant: rows without a gap between them, of which
none changes any more and none comes late; views that were given out stay as they were.
"""

from __future__ import annotations

import numpy as np

from ..arrays.dtypes import Ints
from ..streams import CHUNK_ROWS

_SPARE = 1.25  # of memory, so that not every query moves what is there


class RowCache:
    """next: the number of the first row that is not kept; whole: it begins where the agent's ring did."""

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
        """Forget everything; the next rows will be from this number on."""
        self._table = np.zeros((0, self._slots), np.int64)
        self._begin = self._end = 0
        self.next, self.whole = first, whole

    def take(self, fresh: Ints, first: int, last: int) -> Ints:
        """All rows, with these behind them: what there was of the numbers from `first` to `last`.

        What is not settled (a row in their midst is not written yet) is in the result, but will be asked for again.
        """
        if first > self.next:  # the ring has lost rows since they were asked for
            self.begin(first, True)
        settled = _settled(fresh[:, -1], self.next, last)
        if settled:
            self._append(fresh[:settled])
            self.next = int(fresh[settled - 1, -1]) + 1
        return self.table if settled == len(fresh) else np.concatenate([self.table, fresh[settled:]])

    def drop_before(self, first: int) -> None:
        """Rows of lower numbers: the agent's ring has lost them too."""
        self._begin += int(np.searchsorted(self.table[:, -1], first))

    def _append(self, fresh: Ints) -> None:
        if self._end == self._begin:
            self._table, self._begin, self._end = fresh, 0, len(fresh)
            return
        if self._end + len(fresh) > len(self._table):
            rows = self._end - self._begin
            moved = np.empty((int((rows + len(fresh)) * _SPARE), self._slots), np.int64)
            moved[:rows] = self.table
            self._table, self._begin, self._end = moved, 0, rows
        self._table[self._end : self._end + len(fresh)] = fresh
        self._end += len(fresh)


def _settled(numbers: Ints, first: int, last: int) -> int:
    """How many of these rows nothing can come between any more: a place that was skipped long ago stays empty."""
    late = max(first, last - CHUNK_ROWS)  # of older places none is still being written
    place = int(np.searchsorted(numbers, late))
    gaps = np.flatnonzero(numbers[place:] != np.arange(late, late + len(numbers) - place))
    return place + int(gaps[0]) if len(gaps) else len(numbers)
