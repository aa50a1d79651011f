"""Stacks, which other processes take by reading this one's memory: where they lie, and the rows of profiles.

Called by the server, on the agent's thread.  Invariant: one client profiles at a time, and what it deposits is copied
as it comes: rows of a bounded number.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from ... import protocol as wire
from ...streams import PROFILE_NODES, PROFILE_SAMPLES, STREAMS
from ..inspect.interpreter_layout import Layout, Unknown, interpreter_layout
from ..steps.step_count import Steps
from ..storage.log import Log
from ..storage.rows import Stream
from .connections import Connection
from .server import Key, Refused, Server

_RETENTION_BYTES = {PROFILE_NODES: 8 << 20, PROFILE_SAMPLES: 32 << 20}
_MOST_NAMES, _NAME_CHARACTERS = 4096, 1000  # in one deposit
_BY_CHARACTERS = 200
_MOST_SEARCHES = 5


class Profiles:
    """begin() for a new profile, deposit() while it runs.  layout: where frames lie, None until it is
    known."""

    def __init__(self, server: Server, streams: dict[str, Stream], log: Log, steps: Steps) -> None:
        self._server, self._streams, self._log, self._steps = server, streams, log, steps
        self.layout: Layout | None = None
        self._searches = 0
        self._by: Connection | None = None
        self._by_name = ""
        server.handlers |= {wire.PROFILE: self.begin, wire.DEPOSIT: self.deposit}

    def search(self) -> None:
        """Find out where frames lie, before anybody needs it: by then another thread may hold the GIL for ever.

        Not in a job without ctypes, which the search would import.
        """
        if self.layout is None and self._searches < _MOST_SEARCHES and "ctypes" in sys.modules:
            self._searches += 1
            with suppress(Unknown):
                self.layout = interpreter_layout()

    def begin(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if self._by is not None and self._by.is_open and self._by is not key[0]:
            raise Refused("profiled", f"{self._by_name} is profiling it. Wait until that ends.")
        try:
            self.layout = self.layout or interpreter_layout()
        except Unknown as error:
            raise Refused("no-frames", f"its interpreter keeps its frames where they are not found: {error}.") from None
        for name, retained in _RETENTION_BYTES.items():
            if name not in self._streams:
                self._streams[name] = Stream(name, STREAMS[name], retained)
        self._by, self._by_name = key[0], str(request.get("by", ""))[:_BY_CHARACTERS]
        following = {name: self._streams[name].position() + 1 for name in _RETENTION_BYTES}
        self._server.reply(key, wire.PROFILING, layout=self.layout, next=following, count=self._steps.count)

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
        self._server.reply(key, wire.STORED, ids=ids, count=self._steps.count)
