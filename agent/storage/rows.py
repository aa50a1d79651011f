"""Streams of packed rows: taps append, the server reads; the training process never converts rows.

Invariant: a row belongs to the caller that claimed its place.  `claim` is a single C call, so several
threads append without a lock.  A row is complete when its last slot holds its number; if that slot holds
anything else, the place has not been written in this lap of the ring.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from operator import length_hint
from struct import Struct
from typing import Any

from ...streams import CHUNK_ROWS, RETENTION_BYTES
from .memory import shared_memory, usual_or_reserved

_SLOT = Struct("<q")
_NO_END = 1 << 62  # row numbers never run out


class Stream:
    """A ring of rows of k signed 8-byte slots in one memfd.

    claim() -> (offset, seq) takes the next place atomically; the caller packs its k - 1 values and seq
    there with `pack_into(buffer, offset, …)`.  The two take about 170 ns and allocate nothing that the garbage
    collector tracks.
    """

    def __init__(self, name: str, slots: tuple[str, ...], retention_bytes: int = RETENTION_BYTES) -> None:
        self.slots = slots
        self.struct = Struct(f"<{len(slots)}q")
        self.row_bytes = self.struct.size
        self.chunks = max(2, usual_or_reserved(retention_bytes) // (CHUNK_ROWS * self.row_bytes))
        self.capacity = self.chunks * CHUNK_ROWS
        self.buffer = shared_memory(f"probe-{name}", self.capacity * self.row_bytes)
        self.pack_into: Callable[..., None] = self.struct.pack_into
        lap = range(0, self.capacity * self.row_bytes, self.row_bytes)
        self._numbers = iter(range(1, _NO_END))
        # Walks round the ring for ever, entirely in C: a tap never starts a new chunk, and no lap is cleared.
        self._places = chain.from_iterable(repeat(lap))
        self.claim: Callable[[], tuple[int, int]] = zip(self._places, self._numbers, strict=False).__next__

    def append(self, *values: int) -> tuple[mmap.mmap, int, int]:
        """Write a row of all slots except seq.  Any thread.  Returns (buffer, offset, seq), to patch a slot later."""
        offset, seq = self.claim()
        self.pack_into(self.buffer, offset, *values, seq)
        return self.buffer, offset, seq

    def writer(self, *values: int | Callable[[], int]) -> Callable[[Any], None]:
        """A callable that ignores its one argument and writes a row of these values, or of what they return.

        It runs entirely in C: between two large kernels, when no cache holds our code any more, it takes half as
        long as a Python function.  Once the stream is closed it returns its argument.
        """
        slots = (iter(value, _NO_END) if callable(value) else repeat(value) for value in values)
        return partial(next, map(self.pack_into, repeat(self.buffer), self._places, *slots, self._numbers))

    def extend(self, rows: Any) -> None:
        """Take rows of all slots that another process has numbered, on from position() + 1.  Of a stream with no other
        writer, on its thread."""
        view = memoryview(rows)
        count, place = len(view) // self.row_bytes, self.position() % self.capacity
        first = min(count, self.capacity - place) * self.row_bytes
        self.buffer[place * self.row_bytes : place * self.row_bytes + first] = view[:first]
        self.buffer[: len(view) - first] = view[first:]
        next(islice(self._numbers, count - 1, count), None)

    def position(self) -> int:
        """The number of the last claimed row, 0 before the first.  Costs nothing.  Any thread."""
        return _NO_END - 1 - length_hint(self._numbers)

    def oldest(self) -> int:
        """The number of the oldest row still in the ring; earlier rows were overwritten."""
        return max(1, self.position() - self.capacity + 1)

    def read(self, first: int, last: int, rows: int) -> Iterator[tuple[int, memoryview]]:
        """Pieces (number of the first row, the rows) of at most `rows` rows; none spans the ring's end.

        Nothing is copied: pieces are views into the ring and must be released before close().
        """
        first = max(first, self.oldest())
        while first <= last:
            place = (first - 1) % self.capacity
            count = min(rows, last - first + 1, self.capacity - place)
            yield first, memoryview(self.buffer)[place * self.row_bytes : (place + count) * self.row_bytes]
            first += count

    def newest(self, count: int) -> list[tuple[int, ...]]:
        """The complete ones of the last rows.  Any thread."""
        last, rows = self.position(), list[tuple[int, ...]]()
        for first, view in self.read(last - count + 1, last, count):
            found = enumerate(self.struct.iter_unpack(view), first)
            rows += [row for number, row in found if row[-1] == number]  # other rows are being written
        return rows

    def last_value(self, slot: str) -> int | None:
        """Of the last row, None before the first.  Any thread."""
        rows = self.newest(2)  # the last row may not be written yet
        return rows[-1][self.slots.index(slot)] if rows else None

    def since(self, first: int, last: int, slot: str, value: int) -> int:
        """The number of the row just before the first one whose `slot` is at least `value`.

        Approximate: rows are assumed to be sorted by this slot, apart from a few.  A binary search, which reads one
        slot about twenty times however long the history is.
        """
        place = 8 * self.slots.index(slot)
        oldest = first = max(first, self.oldest())
        while first < last:
            middle = (first + last) // 2
            offset = (middle - 1) % self.capacity * self.row_bytes
            found = _SLOT.unpack_from(self.buffer, offset + place)[0]
            if found < value and _SLOT.unpack_from(self.buffer, offset + self.row_bytes - 8)[0] == middle:
                first = middle + 1
            else:  # also if the place is being written
                last = middle
        return max(oldest, first - 1)

    def close(self) -> None:
        """Free the memory.  A tap in flight finds no number, or a closed buffer, and swallows the error."""
        self._numbers.__setstate__(_NO_END)  # type: ignore[attr-defined]
        self.buffer.close()
