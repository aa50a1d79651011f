"""The mirror: raw rows on the disk from one writing of tables to the next, for when recorder and job die together.

Written by probe.record.recorder at each flush in between, read by probe.record.mirrored.  It holds of each agent what
its tables will be derived from: rows one after another, the log, and `about.json`, which is written last and says up to
which row it counts.  Invariant: at any moment what counts belongs to one moment, as rows read from memory do.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

import numpy as np

from ..arrays.integers import Ints
from ..host import agent_memory
from ..snapshot.log import START
from ..snapshot.memory_source import Ring
from ..snapshot.source import Rank
from ..streams import CHUNK_ROWS, COLLECTIVES, STEPS, STREAMS, WRITTEN
from .sources import Begin, HeldMemory

ABOUT, AGENTS, LOG = "about.json", "agents.json", "log"
_COMMITTED = Struct("<q")
_SHARE = 4  # of a ring one part in so many, after which tables are to be written before rows are overwritten
_LAPS = 2  # of a ring, after which a copy of all of it begins anew
_STREAMS = (STEPS, *(stream for stream in STREAMS if stream != STEPS))  # what a step needs is there before its end


def place(job: Path) -> Path:
    """Where this host's recorder of a job mirrors its ranks; plain readers pass over a name with a dot."""
    return job / f".mirror-{socket.gethostname()}"


class Mirror:
    """job: the folder of the job.  All methods raise OSError, after which forget() makes it begin anew."""

    def __init__(self, job: Path) -> None:
        self._folder = place(job)
        self._agents: dict[str, _Agent] = {}

    def covers(self, held: Mapping[str, HeldMemory]) -> bool:
        """Whether it holds all of these agents, and can take more of their rows."""
        return set(held) <= set(self._agents) and not any(each.is_full for each in self._agents.values())

    def begin(self, held: Mapping[str, HeldMemory], ranks: Mapping[str, Rank], begin: Begin) -> None:
        """Tables have been written: from now on hold just the rows since a moment of each rank and stream."""
        self._agents = {id: each for id, each in self._agents.items() if id in held}
        for id, rank in ranks.items():
            if id in held and held[id].files:
                if id not in self._agents:
                    self._agents[id] = _Agent(self._folder / id, held[id])
                self._agents[id].begin(partial(_wanted, begin, rank))
        self.copy()
        self._folder.mkdir(exist_ok=True)
        _write(self._folder / AGENTS, sorted(self._agents))
        for name in set(os.listdir(self._folder)) - {AGENTS, *self._agents}:
            shutil.rmtree(self._folder / name)

    def copy(self) -> None:
        """Take what is new.  Cost: about a millisecond a rank."""
        for each in self._agents.values():
            each.copy()

    def forget(self) -> None:
        self._agents.clear()

    def remove(self) -> None:
        """What it holds is in the tables."""
        self.forget()
        with suppress(FileNotFoundError):
            os.unlink(self._folder / AGENTS)  # from here on nothing of it counts
            shutil.rmtree(self._folder)


class _Agent:
    """The mirror of one agent."""

    def __init__(self, folder: Path, memory: HeldMemory) -> None:
        self.folder, self._memory = folder, memory
        self._copies: dict[str, _Copy] = {}
        self._log_end = 0
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def is_full(self) -> bool:
        return any(each.is_full for each in self._copies.values())

    def begin(self, since: Callable[[str], tuple[int, int | None]]) -> None:
        """since: the number of the last row of each stream, and the moment from which on rows are wanted, None: all."""
        for stream, slots, ring in self._rings(self._said()):
            last, moment = since(stream)
            copy, first = self._copies.get(stream), max(1, last - ring.rows + 1)
            if moment is not None and last:
                first = ring.since(first, last, slots.index(WRITTEN[stream]), moment)
            elif copy is not None and copy.rows < _LAPS * ring.rows:
                copy.grown = 0
                continue
            self._copies[stream] = _Copy(self.folder / stream, first, last)

    def copy(self) -> None:
        said, lasts = self._said(), {}
        for stream, slots, ring in self._rings(said):
            copy = self._copies.setdefault(stream, _Copy(self.folder / stream, 1, 0))
            copy.take(ring, slots.index("done_ns") if stream == COLLECTIVES else None)
            lasts[stream] = copy.last
        self._copy_log()
        said |= {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
        if (known := self._memory.known) is not None:
            said |= {"step_base": known.step_base, "step_source": known.step_source}
        _write(self.folder / ABOUT, {"pid": self._memory.process, "facts": said, "last": lasts})

    def _said(self) -> dict[str, Any]:
        said = agent_memory.said_at(self._memory.paths()["header"])
        return said if isinstance(said, dict) else {"streams": {}}

    def _rings(self, said: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str], Ring]]:
        for stream in _STREAMS:
            file, layout = self._memory.files.get(stream), said["streams"].get(stream)
            if file is not None and layout is not None:
                yield stream, layout["slots"], Ring(file, len(layout["slots"]), os.fstat(file).st_size)

    def _copy_log(self) -> None:
        """Append what has been said since."""
        file = self._memory.files[LOG]
        (end,) = _COMMITTED.unpack(os.pread(file, _COMMITTED.size, 0))
        if end == self._log_end:
            return
        begin = self._log_end or START
        with _open(self.folder / LOG, is_there=self._log_end > 0) as copy:
            copy.seek(begin)
            copy.write(agent_memory.read_range(file, begin, end))
            copy.flush()
            os.pwrite(copy.fileno(), _COMMITTED.pack(end), 0)
        self._log_end = end


class _Copy:
    """Rows of one stream in a file, one after another: one that was in flight follows once more when it has ended.

    first: the first wanted; last: one that is there already.  rows: in the file; grown: those since tables were
    written.
    """

    def __init__(self, path: Path, first: int, last: int) -> None:
        self._path, self._next, self._known, self.last = path, first, last, first - 1
        self._pending = np.zeros(0, np.int64)  # numbers of rows that are missing or in flight
        self.rows = self.grown = 0
        self.is_full = self._is_there = False

    def take(self, ring: Ring, ends: int | None) -> None:
        """ends: the slot that is written when an operation ends."""
        last = ring.newest(max(self.last, self._known))
        first = max(self._next, last - ring.rows + 1)
        numbers, table = np.arange(first, last + 1), ring.read(first, last)
        whole = table[:, -1] == numbers
        self._append(table[whole & ((numbers > self.last) | np.isin(numbers, self._pending))])
        is_open = ~whole if ends is None else ~whole | (table[:, ends] == 0)
        self._pending = numbers[is_open & (numbers > last - CHUNK_ROWS)]
        self._next, self.last = int(self._pending.min(initial=last + 1)), last
        self.is_full = self.grown > ring.rows // _SHARE

    def _append(self, table: Ints) -> None:
        if self._is_there and not len(table):
            return
        with _open(self._path, self._is_there) as file:
            file.seek(0, os.SEEK_END)
            file.write(table.tobytes())
        self.grown += len(table) if self._is_there else 0
        self.rows += len(table)
        self._is_there = True


def _wanted(begin: Begin, rank: Rank, stream: str) -> tuple[int, int | None]:
    return rank.recorded(stream), begin(rank, stream)


@contextmanager
def _open(path: Path, is_there: bool) -> Iterator[BinaryIO]:
    """The file, to write to it; one that is not there yet, or is to begin anew, takes its place as a whole."""
    part = path.with_name(f"{path.name}.part")
    with open(path if is_there else part, "r+b" if is_there else "wb") as file:
        yield file
    if not is_there:
        os.rename(part, path)


def _write(path: Path, said: Any) -> None:
    with _open(path, is_there=False) as file:
        file.write(json.dumps(said).encode())
