"""Rows that another process has made of what it saw of this one, copied as they come.

Used by profiles.py and by captures.  Invariant: the rows of a stream are of a bounded number, and have one writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...streams import STREAMS
from ..storage.log import Log
from ..storage.rows import Stream
from .server import Refused

_MOST_NAMES, _NAME_CHARACTERS = 4096, 1000  # in one deposit


class Deposits:
    """retention_bytes: of each stream that rows are deposited in; they are made by the first begin()."""

    def __init__(self, streams: dict[str, Stream], log: Log, retention_bytes: Mapping[str, int]) -> None:
        self._streams, self._log, self._retention_bytes = streams, log, retention_bytes

    def begin(self) -> dict[str, int]:
        """Of each stream the number of its next row, from which on the depositor numbers."""
        for name, retained in self._retention_bytes.items():
            if name not in self._streams:
                self._streams[name] = Stream(name, STREAMS[name], retained)
        return {name: self._streams[name].position() + 1 for name in self._retention_bytes}

    def take(self, names: Sequence[Any], payload: Sequence[Any]) -> list[int]:
        """Keep the rows of each stream; the ids of the names, 0 where there are too many."""
        parts = dict(zip(self._retention_bytes, payload, strict=True))
        if len(names) > _MOST_NAMES or any(len(rows) % self._streams[name].row_bytes for name, rows in parts.items()):
            raise Refused("protocol", "a deposit is of names and whole rows")
        ids = [self._log.string(str(name)[:_NAME_CHARACTERS]) for name in names]
        for name, rows in parts.items():
            if rows:
                self._streams[name].extend(rows)
        return ids
