"""Stacks, which other processes take by reading this one's memory: where they lie, and the rows of profiles.

Called by the server, on the agent's thread.  Invariant: one client profiles at a time, and what it deposits is copied
as it comes: rows of a bounded number.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from ... import protocol as wire
from ...streams import PROFILE_NODES, PROFILE_SAMPLES
from ..inspect.interpreter_layout import Layout, Unknown, interpreter_layout
from ..steps.step_count import Steps
from ..storage.log import Log
from ..storage.rows import Stream
from .connections import Connection
from .deposits import Deposits
from .server import Key, Refused, Server

_RETENTION_BYTES = {PROFILE_NODES: 8 << 20, PROFILE_SAMPLES: 32 << 20}
_BY_CHARACTERS = 200
_MOST_SEARCHES = 5


class Profiles:
    """begin() for a new profile, deposit() while it runs.  layout: where frames lie, None until that is known."""

    def __init__(self, server: Server, streams: dict[str, Stream], log: Log, steps: Steps) -> None:
        self._server, self._steps = server, steps
        self._deposits = Deposits(streams, log, _RETENTION_BYTES)
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

    def found_layout(self) -> Layout:
        """Raises Refused."""
        try:
            self.layout = self.layout or interpreter_layout()
        except Unknown as error:
            raise Refused("no-frames", f"its interpreter keeps its frames where they are not found: {error}.") from None
        return self.layout

    def begin(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if self._by is not None and self._by.is_open and self._by is not key[0]:
            raise Refused("profiled", f"{self._by_name} is profiling it. Wait until that ends.")
        layout = self.found_layout()
        self._by, self._by_name = key[0], str(request.get("by", ""))[:_BY_CHARACTERS]
        following = self._deposits.begin()
        self._server.reply(key, wire.PROFILING, layout=layout, next=following, count=self._steps.count)

    def deposit(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if self._by is not key[0]:
            raise Refused("protocol", "no profile has begun")
        ids = self._deposits.take(request["names"], payload)
        self._server.reply(key, wire.STORED, ids=ids, count=self._steps.count)
