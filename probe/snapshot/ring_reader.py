"""Rows of an agent on this machine, read from its rings in memory without its help.

Called by probe.snapshot.scans.  Invariant: the rows are those that the agent would send.  They are read while it
writes, so a row counts only if it was complete before its values were read and was not overwritten meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct
from typing import Any

import numpy as np

from ..arrays.integers import Ints
from ..host import agent_memory
from ..streams import CHUNK_ROWS

_SLOT = Struct("<q")
_WRITING = 64  # rows that may be in progress at a time, one per thread


class RingReader:
    """The rings of one agent; their memfds are looked up once."""

    def __init__(self, pid: int, inodes: dict[str, int], paths: dict[str, str]) -> None:
        self._pid, self._inodes, self._paths = pid, inodes, paths

    @classmethod
    def of(cls, pid: int, identity: str | None) -> RingReader | None:
        """The rings of the agent with this id; None if its memory cannot be read, or has several agents."""
        said = agent_memory.facts(pid) if identity else None
        if said is None or said.id != identity or not agent_memory.is_alone(pid):
            return None
        try:
            paths = agent_memory.descriptors(pid)
            return cls(pid, {name: os.stat(path).st_ino for name, path in paths.items()}, paths)
        except OSError:
            return None

    def rows(
        self, stream: str, slots: Sequence[str], first: int, last: int, since: tuple[str, int] | None = None
    ) -> tuple[int, Ints]:
        """The number of the first row, and the table from there to `last`, including places without a row.

        Raises OSError if the agent is gone.
        """
        file = os.open(self._paths[stream], os.O_RDONLY | os.O_CLOEXEC)
        try:
            about = os.fstat(file)
            if about.st_ino != self._inodes[stream]:
                raise OSError(f"pid {self._pid} has another agent")
            ring = _Ring(file, len(slots), about.st_size)
            if since is not None:
                first = ring.since(first, last, slots.index(since[0]), since[1])
            return first, ring.read(first, last)
        finally:
            os.close(file)


class _Ring:
    def __init__(self, file: int, slots: int, size: int) -> None:
        self._file, self._slots = file, slots
        self.rows = size // (8 * slots)

    def read(self, first: int, last: int) -> Ints:
        """Rows that are incomplete or overwritten have the number 0."""
        table = self._copy(first, last)
        fresh = max(first, last - CHUNK_ROWS)  # older rows have been complete for long
        whole = table[fresh - first :, -1] == np.arange(fresh, last + 1)
        table[fresh - first :] = self._copy(fresh, last)
        table[fresh - first :, -1] *= whole
        lost = self._newest(last) + _WRITING - self.rows
        table[: max(0, lost - first + 1), -1] = 0
        return table

    def since(self, first: int, last: int, slot: int, value: int) -> int:
        """As agent/storage/rows.py."""
        oldest = first
        while first < last:
            middle = (first + last) // 2
            if self._value(middle, slot) < value and self._value(middle, self._slots - 1) == middle:
                first = middle + 1
            else:
                last = middle
        return max(oldest, first - 1)

    def _copy(self, first: int, last: int) -> Ints:
        table = np.empty((max(0, last - first + 1), self._slots), np.int64)
        done = 0
        while done < len(table):  # twice if the ring ends in between
            place = (first + done - 1) % self.rows
            part = table[done : done + self.rows - place]
            into: Any = part.reshape(-1).view(np.uint8)
            got = os.preadv(self._file, [into], place * 8 * self._slots)
            if got <= 0 or got % (8 * self._slots):
                raise OSError("the memory is cut off")
            done += got // (8 * self._slots)
        return table

    def _newest(self, last: int) -> int:
        """The number of the newest row by now."""
        step = 1
        while self._value(last + step, self._slots - 1) == last + step:
            step *= 2
        low, high = last + step // 2, last + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._value(middle, self._slots - 1) == middle else (low, middle)
        return low

    def _value(self, seq: int, slot: int) -> int:
        data = os.pread(self._file, 8, ((seq - 1) % self.rows * self._slots + slot) * 8)
        value: Any = _SLOT.unpack(data)[0]
        return int(value)
