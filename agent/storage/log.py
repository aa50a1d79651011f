"""The append-only log of strings and of the meaning of serial numbers: taps put, the agent's thread writes.

Invariant: only the agent's thread touches the memfd.  Other threads append to a deque, which takes no
lock, so neither a signal handler nor a preempted writer can ever block a training step.
"""

from __future__ import annotations

import json
from collections import deque
from itertools import count
from struct import Struct
from typing import Any

from ...streams import LOG_BYTES, LOG_MODULE, LOG_RECORD, LOG_STRING
from .memory import shared_memory, usual_or_reserved

_RECORD = Struct(LOG_RECORD)
_COMMITTED = Struct("<Q")
_MAX_STRINGS = 100_000  # distinct strings; bounds the memory of a tap that keeps making new ones
_MAX_WAITING = 1 << 16  # most records put but not yet written
_ROOM_SHARE = 8  # one part in so many is not for modules, of which some jobs make new ones in each step


class Log:
    """Records (kind, id, payload) in the layout of streams.py; ids are never reused."""

    def __init__(self) -> None:
        self.buffer = shared_memory("probe-log", usual_or_reserved(LOG_BYTES))
        self._end_of_modules = len(self.buffer) - len(self.buffer) // _ROOM_SHARE
        self.committed = _COMMITTED.size
        self.dropped = 0  # for want of room
        self.missed = 0  # more strings than are kept, or more records than may wait
        self._ids = count(1)
        self._strings: dict[str, int] = {}
        self._waiting: deque[tuple[int, int, Any]] = deque(maxlen=_MAX_WAITING)
        _COMMITTED.pack_into(self.buffer, 0, self.committed)

    @property
    def trouble(self) -> str:
        """What was dropped, in words; "" for nothing.  Any thread."""
        why = "the log is full" if self.dropped else "more came than the log takes"
        missing = self.dropped + self.missed
        return f"{why}: {missing:,} records, such as names of new modules, are missing" if missing else ""

    def next_id(self) -> int:
        """A number unique in this process.  Any thread."""
        return next(self._ids)

    def put(self, kind: int, id: int, payload: Any) -> None:
        """Record what `id` means: text for LOG_STRING, else a value for json.  Any thread, about 100 ns."""
        if len(self._waiting) >= _MAX_WAITING:
            self.missed += 1
            return
        self._waiting.append((kind, id, payload))

    def string(self, text: str) -> int:
        """The id of this text, 0 if there are too many strings, or none more can wait.  Any thread."""
        known = self._strings.get(text)
        if known is None:
            if len(self._strings) >= _MAX_STRINGS or len(self._waiting) >= _MAX_WAITING:
                self.missed += 1
                return 0
            known = self._strings[text] = next(self._ids)
            self.put(LOG_STRING, known, text)
        return known

    def write(self) -> None:
        """Write waiting records to the memfd; the agent's thread only."""
        while self._waiting:
            kind, id, payload = self._waiting.popleft()
            text = payload if kind == LOG_STRING else json.dumps(payload, default=repr)
            data = text.encode("utf-8", "surrogatepass" if kind != LOG_STRING else "replace")
            start = self.committed + _RECORD.size
            end = start + -(-len(data) // 8) * 8
            if end > (self._end_of_modules if kind == LOG_MODULE else len(self.buffer)):
                self.dropped += 1
                continue
            _RECORD.pack_into(self.buffer, self.committed, kind, len(data), id)
            self.buffer[start : start + len(data)] = data
            self.committed = end
        _COMMITTED.pack_into(self.buffer, 0, self.committed)

    def read(self, first: int, last: int) -> memoryview:
        """Committed bytes first … last - 1, without a copy."""
        return memoryview(self.buffer)[max(first, _COMMITTED.size) : min(last, self.committed)]

    def close(self) -> None:
        self.buffer.close()
