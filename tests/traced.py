"""A function that is traced, and the rows of its calls.  Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.agent.trace.traces import Trace
from probe.streams import CALLS, FAILED, STREAMS


class Traced:
    def __init__(self, function: Any, since: str, bound: bool) -> None:
        self.stream, self.log = Stream(CALLS, STREAMS[CALLS], 1), Log()
        self.original = function.__code__
        self.trace = Trace(function, bound, since, self.stream, self.log)
        self.trace.begin()
        assert function.__code__ is not self.original

    @property
    def rows(self) -> list[dict[str, int]]:
        slots = self.stream.slots
        return [dict(zip(slots, row, strict=True)) for row in self.stream.newest(self.stream.position())]

    @property
    def failed(self) -> list[bool]:
        return [bool(row["flags"] & FAILED) for row in self.rows]


@contextmanager
def traced(function: Any, since: str = "", bound: bool = False) -> Iterator[Traced]:
    made = Traced(function, since, bound)
    try:
        yield made
    finally:
        made.trace.end()
        assert function.__code__ is made.original
        made.stream.close()
        made.log.close()
