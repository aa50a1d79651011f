"""Checks that the rows and log bytes an agent sends can be what was asked for.

Called by probe.client.client for every message of a scan or a log.  Invariant: messages come in order, lie within what
was asked for, and none is empty, so an agent that sends forever is detected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import protocol as wire
from ..host.facts import Facts


class Expected:
    """What one scan or log may still bring.  take() and end() raise WireError for anything else."""

    def __init__(self, asked: Mapping[str, Any], facts: Facts) -> None:
        self._next, self._last = int(asked["first"]), int(asked["last"])
        self._taken = 0  # rows, or bytes
        self._row_bytes = 8 * len(facts.slots(asked["stream"])) if "stream" in asked else 0

    def take(self, header: Mapping[str, Any], payload: Sequence[Any]) -> None:
        """Check a message before the last."""
        size = len(payload[-1].buffer)
        if header["kind"] == wire.ROWS:
            self._take_rows(header["first"], header["rows"], size)
        elif 0 < size <= self._last - self._next - self._taken:
            self._taken += size
        else:
            raise wire.WireError(f"{size} bytes of a log of which {self._last - self._next - self._taken} were due")

    def _take_rows(self, first: int, rows: int, size: int) -> None:
        if size != rows * self._row_bytes:
            raise wire.WireError(f"{rows} rows of {self._row_bytes} bytes in {size}")
        if not self._next <= first <= first + rows - 1 <= self._last:
            raise wire.WireError(f"rows {first} to {first + rows - 1} where {self._next} to {self._last} were due")
        self._next = first + rows
        self._taken += rows

    def end(self, said: int) -> None:
        """Check the last message, with the number of rows or bytes that the agent says it has sent."""
        if said != self._taken:
            raise wire.WireError(f"{self._taken} rows or bytes came, of {said}")
