"""Profiles, which another process takes by reading this one's memory, and whose rows it deposits here.

Called by the server, on the agent's thread.  Invariant: one client profiles at a time, and what it deposits is copied
as it comes: rows of a bounded number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import protocol as wire
from ...streams import PROFILE_NODES, PROFILE_SAMPLES, STREAMS
from ..inspect.interpreter_layout import Layout, Unknown, interpreter_layout
from ..storage.log import Log
from ..storage.rows import Stream
from .connections import Connection
from .server import Key, Refused, Server

_RETENTION_BYTES = {PROFILE_NODES: 8 << 20, PROFILE_SAMPLES: 32 << 20}
_MOST_NAMES, _NAME_CHARACTERS = 4096, 1000  # in one deposit
_BY_CHARACTERS = 200


class Profiles:
    """begin() for a new profile, deposit() while it runs.  count: boundaries since the attach."""

    def __init__(self, server: Server, streams: dict[str, Stream], log: Log, count: Callable[[], int]) -> None:
        self._server, self._streams, self._log, self._count = server, streams, log, count
        self._layout: Layout = {}
        self._by: Connection | None = None
        self._by_name = ""

    def begin(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if self._by is not None and self._by.is_open and self._by is not key[0]:
            raise Refused("profiled", f"{self._by_name} is profiling it. Wait until that ends.")
        try:
            self._layout = self._layout or interpreter_layout()
        except Unknown as error:
            raise Refused("no-frames", f"its interpreter keeps its frames where they are not found: {error}.") from None
        for name, retained in _RETENTION_BYTES.items():
            if name not in self._streams:
                self._streams[name] = Stream(name, STREAMS[name], retained)
        self._by, self._by_name = key[0], str(request.get("by", ""))[:_BY_CHARACTERS]
        following = {name: self._streams[name].position() + 1 for name in _RETENTION_BYTES}
        self._server.reply(key, wire.PROFILING, layout=self._layout, next=following, count=self._count())

    def deposit(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if self._by is not key[0]:
            raise Refused("protocol", "no profile has begun")
        names, parts = request["names"], dict(zip(_RETENTION_BYTES, payload, strict=True))
        if len(names) > _MOST_NAMES or any(len(rows) % self._streams[name].row_bytes for name, rows in parts.items()):
            raise Refused("protocol", "a deposit is of names and whole rows")
        ids = [self._log.string(str(name)[:_NAME_CHARACTERS]) for name in names]
        for name, rows in parts.items():
            if rows:
                self._streams[name].extend(rows)
        self._server.reply(key, wire.STORED, ids=ids, count=self._count())
