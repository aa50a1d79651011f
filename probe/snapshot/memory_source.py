"""Rows out of the memory of agents on this machine, without their help.

MemorySource is the rank in a process that is stopped or does not answer; the wire source uses it for silent ranks.
RingReader has the rows of an agent that answers, for probe.snapshot.scans: those that the agent would send.  They are
read while it writes, so a row counts only if it was complete before its values were read and was not overwritten
meanwhile.  Invariant: nothing is asked of the target, which need not run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import Any

import numpy as np

from ..arrays.integers import Ints
from ..errors import SilentError
from ..host import agent_memory
from ..host.agent_memory import descriptors, filled, read_range
from ..host.facts import Facts
from ..streams import CHUNK_ROWS, STEPS
from .live_stacks import read_stacks
from .log import Log, stored_log
from .source import Rank, Source
from .stacks import Thread

_SLOT = Struct("<q")
_WRITING = 64  # rows that may be in progress at a time, one per thread
_AT_A_TIME = 4 * _WRITING  # rows, of a search for the newest


class MemorySource(Source):
    """known: the facts that number the steps of this rank, if a connection has found them out."""

    def __init__(self, pid: int, known: Facts | None = None) -> None:
        self._pid, self.known = pid, known
        self._tables: dict[str, Ints] = {}

    def ranks(self) -> Sequence[Rank]:
        """Empty if the process has no agent or is just ending."""
        facts = self.said()
        self._tables.clear()
        if facts is None:
            return []
        try:
            steps = self.table(STEPS, facts)
        except OSError:
            return []
        if (log := self.log()) is None:
            return []
        monotonic_ns, wall_ns = self.moment(facts)
        facts = facts._replace(monotonic_ns=monotonic_ns, wall_ns=wall_ns)
        if len(steps):  # the header may also be behind the steps
            last = dict(zip(facts.slots(STEPS), steps[-1].tolist(), strict=True))
            facts = facts._replace(count=last["count"] + 1, last_step_ns=last["time_ns"])
        if self.known is not None:
            facts = facts._replace(step_base=self.known.step_base, step_source=self.known.step_source)
        return [Rank(self._pid, facts, {}, log)]

    def said(self) -> Facts | None:
        """What the agent says of itself."""
        return agent_memory.facts(self._pid)

    def moment(self, facts: Facts) -> tuple[int, int]:
        """As of when the rows are, by both clocks.  What the header says may be old: the target may stand still."""
        return time.monotonic_ns(), time.time_ns()

    def paths(self) -> Mapping[str, str]:
        """Where the memory of each stream is."""
        return descriptors(self._pid)

    def log(self) -> Log | None:
        return stored_log(self._pid)

    def rows(self, stream: str, since_ns: Mapping[Rank, int | None]) -> Mapping[Rank, Ints]:
        """All rows as they lay there when the stream was first asked for."""
        (rank,) = since_ns
        try:
            return {rank: self.table(stream, rank.facts)}
        except OSError:
            rank.leave(SilentError(f"Rank {rank.rank} (pid {rank.pid}) ended."))
            return {}

    def stacks(self, ranks: Sequence[Rank]) -> Mapping[Rank, list[Thread]]:
        found = {rank: read_stacks(rank.pid) for rank in ranks}
        return {rank: threads for rank, threads in found.items() if threads is not None}

    def table(self, stream: str, facts: Facts) -> Ints:
        """Complete rows by number.  Raises OSError."""
        if stream not in self._tables:
            path, slots = self.paths().get(stream), len(facts.slots(stream))
            self._tables[stream] = np.zeros((0, slots), np.int64) if path is None else _rows(path, slots)
        return self._tables[stream]


def _rows(path: str, slots: int) -> Ints:
    """Complete rows by number: the ring's last lap, oldest chunk first."""
    row_bytes, parts = 8 * slots, [np.zeros((0, slots), np.int64)]
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        ring = size // row_bytes
        for start, end in filled(file.fileno(), size):
            first, last = start // row_bytes, -(-end // row_bytes)
            part = np.frombuffer(read_range(file.fileno(), first * row_bytes, last * row_bytes), "<i8")
            part = part.reshape(-1, slots)
            parts.append(part[(part[:, -1] > 0) & ((part[:, -1] - 1) % ring == np.arange(first, first + len(part)))])
    table: Ints = np.concatenate(parts)
    table = table[table[:, -1] > table[:, -1].max(initial=0) - ring]
    return table[np.argsort(table[:, -1], kind="stable")]


class RingReader:
    """The rings of one agent; their memfds are looked up once, and again for one that is made later."""

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
        self, stream: str, slots: Sequence[str], first: int, last: int, since: Sequence[Any] | None = None
    ) -> tuple[int, Ints]:
        """The number of the first row, and the table from there to `last`, including places without a row.

        since: (slot, value), as for a request to scan.  Raises OSError if the agent is gone.
        """
        with self._open(stream, slots) as ring:
            if since is not None:
                first = ring.since(first, last, slots.index(since[0]), since[1])
            return first, ring.read(first, last)

    def first(
        self, stream: str, slots: Sequence[str], first: int, last: int, since: Sequence[Any] | None
    ) -> int | None:
        """The number of the first row to send for such a request; None if the ring does not have the last one."""
        with self._open(stream, slots) as ring:
            if not (last > 0 and ring.has(last)):
                return None
            first = max(first, 1, last - ring.rows + 1)
            return first if since is None else ring.since(first, last, slots.index(since[0]), since[1])

    @contextmanager
    def _open(self, stream: str, slots: Sequence[str]) -> Iterator[Ring]:
        if stream not in self._paths:
            self._look_again(stream)
        file = os.open(self._paths[stream], os.O_RDONLY | os.O_CLOEXEC)
        try:
            about = os.fstat(file)
            if about.st_ino != self._inodes[stream]:
                raise OSError(f"pid {self._pid} has another agent")
            yield Ring(file, len(slots), about.st_size)
        finally:
            os.close(file)

    def _look_again(self, stream: str) -> None:
        """Raises OSError if the agent has no such stream, or if it is another agent by now."""
        paths = agent_memory.descriptors(self._pid)
        inodes = {name: os.stat(path).st_ino for name, path in paths.items()}
        if stream not in paths or not self._inodes.items() <= inodes.items():
            raise OSError(f"pid {self._pid} has no stream {stream}")
        self._paths, self._inodes = paths, inodes


class Ring:
    """One stream in an open memfd."""

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
        lost = self.newest(last) + _WRITING - self.rows
        table[: max(0, lost - first + 1), -1] = 0
        return table

    def has(self, number: int) -> bool:
        """Whether this row is there, and complete."""
        return self._value(number, self._slots - 1) == number

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

    def newest(self, after: int) -> int:
        """The number of the newest complete row, this one or a later one; places that are skipped are passed over."""
        while True:
            found = np.flatnonzero(
                self._copy(after + 1, after + _AT_A_TIME)[:, -1] == np.arange(1, 1 + _AT_A_TIME) + after
            )
            if not len(found):
                return after
            after += int(found[-1]) + 1

    def _value(self, seq: int, slot: int) -> int:
        data = os.pread(self._file, 8, ((seq - 1) % self.rows * self._slots + slot) * 8)
        return int(_SLOT.unpack(data)[0])
