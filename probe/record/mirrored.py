"""What a mirror holds, read as an agent's memory is, and its rows taken over into the tables.

Called by the recorder before it begins and by Recording before a query.  Invariant: what is taken over is what a
recorder would have written that was stopped at the mirror's moment, so the job may as well live on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..arrays.integers import Ints
from ..errors import SilentError, UsageError
from ..host.facts import Facts
from ..host.facts_shape import wrong_facts
from ..snapshot.log import Log, log_at
from ..snapshot.memory_source import MemorySource
from ..snapshot.snapshot import Snapshot
from . import lock
from .flush import Flushes
from .mirror import ABOUT, AGENTS, LOG, place
from .sources import Windowed
from .stored import Names


class Mirrored(MemorySource):
    """One agent in a mirror.  Raises OSError or ValueError for what no recorder has written."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if wrong := wrong_facts(about["facts"]):
            raise ValueError(wrong)
        self._folder, self._last, self._facts = folder, about["last"], Facts.parse(about["facts"])
        super().__init__(about["pid"])

    def said(self) -> Facts:
        return self._facts

    def moment(self, facts: Facts) -> tuple[int, int]:
        return facts.monotonic_ns, facts.wall_ns

    def paths(self) -> Mapping[str, str]:
        return {stream: str(self._folder / stream) for stream in self._last}

    def log(self) -> Log | None:
        return log_at(str(self._folder / LOG))

    def table(self, stream: str, facts: Facts) -> Ints:
        slots = len(facts.slots(stream))
        if stream not in self._last:
            return np.zeros((0, slots), np.int64)
        data = np.fromfile(self._folder / stream, "<i8")
        rows = data[: len(data) // slots * slots].reshape(-1, slots)
        rows = rows[rows[:, -1] <= self._last[stream]][::-1]
        _, places = np.unique(rows[:, -1], return_index=True)  # of one that is there twice the later one
        found: Ints = rows[places]
        return found


def take_over(job: Path) -> None:
    """Write the rows of this host's mirror into the tables, and remove it.  Take the lock before.  Raises OSError."""
    folder = place(job)
    if not folder.exists():
        return
    if sources := _agents(folder):
        ids, flushes = {str(each.said().id) for each in sources}, Flushes(job, Names(), lambda *_: None)
        with suppress(SilentError):
            now = Snapshot(Windowed(each, flushes.begin) for each in sources)
            flushes.flush(now, (), stops=True, agents=ids)
            flushes.deposits(lambda: Snapshot(sources), now, ids)
    shutil.rmtree(folder)


def _agents(folder: Path) -> Sequence[Mirrored]:
    """None if one of them is missing, as when the mirror was just being made or removed."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        return [Mirrored(folder / id) for id in json.loads((folder / AGENTS).read_text(encoding="utf-8"))]
    return ()


def take_over_what_is_left(jobs: Sequence[Path]) -> list[str]:
    """Of each of these jobs that no recorder writes to; a line about each mirror that could not be taken over."""
    lines = list[str]()
    for job in jobs:
        if place(job).exists():
            with suppress(UsageError):  # a recorder does it
                lines += _taken(job)
    return lines


def _taken(job: Path) -> list[str]:
    """Raises UsageError while a recorder writes to it."""
    try:
        held = lock.take(job, os.O_RDONLY)
        try:
            take_over(job)
        finally:
            os.close(held)
    except OSError as error:
        return [f"{place(job)} is skipped, which has the last minute: {error.strerror}."]
    return []
