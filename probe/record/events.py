"""What happens to a recording: the rows of probe.events that a recorder notes, told at once and kept until written.

Called by recorder.py.  The one invariant: an event stays here until it is in a file.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from ..snapshot.source import Rank
from ..tables import TABLES
from .flush import Flushes
from .stored import ROWS, stored_schema

_CLOCK_S = 1.0  # by which the wall clock may move against the other one
(_EVENTS,) = (table for table in TABLES if table.name == "probe.events")


class Events:
    """tell: gets the text of each event."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell, self._rows = tell, list[dict[str, Any]]()
        self._paused_s: float | None = None
        self._is_refused = False
        self._clock_s = time.time() - time.monotonic()

    def note(self, event: str, text: str, **more: Any) -> None:
        self._tell(text)
        now = datetime.now(timezone.utc).replace(tzinfo=None)
        self._rows.append({"host": socket.gethostname(), "time": now, "event": event, "text": text, **more})

    def note_lost(self, rank: Rank, stream: str, rows: int) -> None:
        text = f"Rank {rank.rank}: {rows} rows of {stream} were overwritten before they were read."
        self.note("lost", text, rank=rank.rank, lost_stream=stream, lost_rows=rows)

    def note_refused(self, path: str) -> None:
        """Once: retention comes every few minutes, and may not remove it then either."""
        if not self._is_refused:
            self._is_refused = True
            self.note("kept", f"What is too old or too much stays where this user may not remove it: {path}.")

    def note_pause(self, error: OSError) -> None:
        """Once, until writing goes on."""
        if self._paused_s is None:
            self._paused_s = time.monotonic()
            why = os.strerror(error.errno) if error.errno else str(error)  # pyarrow has texts of its own
            self.note("paused", f"Nothing can be written: {why}.")

    def note_resumption(self) -> None:
        """If there was a pause."""
        if self._paused_s is not None:
            self.note("resumed", f"Recording goes on after {time.monotonic() - self._paused_s:.0f} s.")
            self._paused_s = None

    def holds(self, event: str) -> bool:
        """Whether one of this kind has not been written yet."""
        return any(each["event"] == event for each in self._rows)

    def look_at_clock(self) -> None:
        """Note that somebody has set it since the last look."""
        now = time.time() - time.monotonic()
        if abs(now - self._clock_s) > _CLOCK_S:
            self.note("clock", f"The wall clock was set by {now - self._clock_s:+.1f} s.")
        self._clock_s = now

    def write(self, flushes: Flushes) -> None:
        """Raises OSError; what could not be written is kept."""
        schema = stored_schema(_EVENTS)
        for rank in {each.get("rank") for each in self._rows}:
            own = [each for each in self._rows if each.get("rank") == rank]
            rows = [{name: each.get(name) for name in schema.names} for each in own]
            flushes.written(_EVENTS, rank).add(ROWS, [socket.gethostname()], [pa.Table.from_pylist(rows, schema)])
            self._rows = [each for each in self._rows if each not in own]
