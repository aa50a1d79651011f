"""What has been written of one table and rank: how far it reaches, by agent, and what the next file replaces.

Held by probe.record.recorder.  Invariant: it says what the files in the folder say, which the next recorder reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..tables.declaration import Table
from .folder import LEVELS, TOGETHER, listing, merge, remove, tidy
from .stored import NO_RANK, OPEN, ROWS, STATE, About, Names, stored_schema, write

_MOST_KEPT = 1 << 17  # rows of a flush, until they are merged


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
        self._own = set[str]()  # agents of this process
        self._recent = dict[str, list[Any]]()  # by file: rows of this process, which become one file unread
        self._merged = self._large = 0  # since the last look at the folder; large: files of more rows than are kept

    def upto(self, agent: str) -> int | None:
        """The watermark; None if nothing has been written of this agent."""
        return self._about.upto.get(agent)

    def seen(self, agent: str) -> Mapping[str, int]:
        return self._about.seen.get(agent, {})

    def reached(self, agent: str, upto: int, seen: Mapping[str, int] | None = None) -> None:
        """There is no row before this: the next file will say so."""
        self._about = self._about.plus(About({agent: upto}, {agent: seen or {}}))
        self._own.add(agent)

    def add(self, kind: str, agents: Sequence[str], tables: Iterable[Any]) -> None:
        """One more file, which replaces the unsettled ones of these agents; a state every one before.  Raises OSError.

        Whoever calls this has called reached() for what the file holds; without `tables`, what it replaces is dropped.
        """
        self._own.update(agents)
        replaced = [*self._unsettled] if kind == STATE else agents
        about = replace(self._about_of(agents), replaces=self._unsettled_of(replaced))
        name = self._names.next(kind)
        kept = list[Any]()
        self._write(name, _keeping(tables, kept), about)
        for agent in replaced:
            self._unsettled.pop(agent, None)
        if kind != ROWS:
            self._unsettled |= dict.fromkeys(agents, name)
        elif sum(map(len, kept)) <= _MOST_KEPT:  # what the rings held at the beginning stays a file
            self._recent[name] = kept
        else:
            self._large += 1

    def _write(self, name: str, tables: Iterable[Any], about: About) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self.folder / name, stored_schema(self._table), tables, about)
        remove(self.folder, about.replaces)

    def merge(self) -> None:
        """Where there are enough files.  Raises OSError."""
        if len(self._recent) >= TOGETHER[0]:
            tables = [each for of_file in self._recent.values() for each in of_file]
            about = replace(self._about_of(self._own), replaces=tuple(self._recent))
            self._write(self._names.next(LEVELS[1]), [pa.concat_tables(tables)], about)
            self._recent.clear()
            self._merged += 1
        if self._merged >= TOGETHER[1] or self._large >= TOGETHER[0]:
            self._merged = self._large = 0
            self._recent.clear()  # these files are merged here, too, and must not be again
            while merge(self.folder, self._names.next, self._own if self._is_shared else None):
                pass

    @property
    def _is_shared(self) -> bool:
        """Whether recorders of other hosts write into the folder, too."""
        return self.folder.name.endswith(NO_RANK)

    def _about_of(self, agents: Iterable[str]) -> About:
        agents = [*agents]
        known = self._about
        return About({each: known.upto.get(each, 0) for each in agents}, {each: self.seen(each) for each in agents})

    def _unsettled_of(self, agents: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._unsettled[each] for each in agents if each in self._unsettled))


def _keeping(tables: Iterable[Any], kept: list[Any]) -> Iterator[Any]:
    """The tables, which are also kept, as long as they are few."""
    for each in tables:
        if sum(map(len, kept)) <= _MOST_KEPT:
            kept.append(each)
        yield each
