"""What has been written of one table and rank: how far it reaches, by agent, and what the next file replaces.

Held by probe.record.recorder.  Invariant: it says what the files in the folder say, which the next recorder reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from ..tables.declaration import Table
from .folder import TOGETHER, listing, merge, remove, tidy
from .stored import OPEN, ROWS, STATE, About, Names, stored_schema, write


class Written:
    """The folder of a table and rank.  Raises OSError where it cannot be read or tidied; it need not exist."""

    def __init__(self, folder: Path, table: Table, names: Names) -> None:
        self.folder, self._table, self._names = folder, table, names
        tidy(folder)
        files = listing(str(folder)).files
        self._about = reduce(About.plus, (each.about for each in files), About())
        self._unsettled = {
            agent: each.name for each in files if each.kind in (OPEN, STATE) for agent in each.about.upto
        }
        self._flushed = sum(each.kind == ROWS for each in files)

    def upto(self, agent: str) -> int | None:
        """The watermark; None if nothing has been written of this agent."""
        return self._about.upto.get(agent)

    def seen(self, agent: str) -> Mapping[str, int]:
        return self._about.seen.get(agent, {})

    def reached(self, agent: str, upto: int, seen: Mapping[str, int] | None = None) -> None:
        """There is no row before this: the next file will say so."""
        self._about = self._about.plus(About({agent: upto}, {agent: seen or {}}))

    def add(self, kind: str, agent: str, tables: Iterable[Any]) -> None:
        """One more file, which replaces the unsettled one of this agent.  Raises OSError.

        Whoever calls this has called reached() for what the file holds; without `tables`, what it replaces is dropped.
        """
        before = self._unsettled.get(agent)
        about = About({agent: self._about.upto.get(agent, 0)}, {agent: self.seen(agent)}, (before,) if before else ())
        name = self._names.next(kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self.folder / name, stored_schema(self._table), tables, about)
        if kind == ROWS:
            self._unsettled.pop(agent, None)
            self._flushed += 1
        else:
            self._unsettled[agent] = name
        remove(self.folder, about.replaces)

    def merge(self) -> None:
        """Where there are enough files.  Raises OSError."""
        if self._flushed >= TOGETHER[0]:
            while merge(self.folder, self._names.next):
                self._flushed = 0
