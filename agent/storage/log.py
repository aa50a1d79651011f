"""The append-only log of strings and of what serial numbers mean: taps put, the agent's thread writes.

The one invariant: only the agent's thread touches the memfd; any other thread appends to a deque, which
takes no lock, so that neither a signal handler nor a preempted writer can ever block a training step.
"""

from __future__ import annotations

import json
from collections import deque
from itertools import count
from struct import Struct
from typing import Any

from ...streams import LOG_BYTES, LOG_RECORD, LOG_STRING
from .memory import shared_memory

_RECORD = Struct(LOG_RECORD)
_COMMITTED = Struct("<Q")
_STRINGS = 100_000  # distinct strings; a tap that keeps making new ones must not grow without bound
_WAITING = 1 << 16  # records put but not written yet, at most


class Log:
    """Records (kind, id, payload) as streams.py lays them out; ids are never used twice."""

    def __init__(self) -> None:
        self.buffer = shared_memory("probe-log", LOG_BYTES)
        self.committed = _COMMITTED.size
        self.dropped = 0
        self._ids = count(1)
        self._strings: dict[str, int] = {}
        self._waiting: deque[tuple[int, int, Any]] = deque(maxlen=_WAITING)
        _COMMITTED.pack_into(self.buffer, 0, self.committed)

    def next_id(self) -> int:
        """A number that nothing else in this process has; any thread."""
        return next(self._ids)

    def put(self, kind: int, id: int, payload: Any) -> None:
        """Say what `id` means: text for LOG_STRING, else what json takes.  Any thread, about 100 ns."""
        self._waiting.append((kind, id, payload))

    def string(self, text: str) -> int:
        """The id of this text, 0 when there are too many.  Any thread."""
        known = self._strings.get(text)
        if known is None:
            if len(self._strings) >= _STRINGS:
                return 0
            known = self._strings[text] = next(self._ids)
            self.put(LOG_STRING, known, text)
        return known

    def write(self) -> None:
        """Bring what was put into the memfd; the agent's thread only."""
        while self._waiting:
            self._record(*self._waiting.popleft())
        _COMMITTED.pack_into(self.buffer, 0, self.committed)

    def _record(self, kind: int, id: int, payload: Any) -> None:
        text = payload if kind == LOG_STRING else json.dumps(payload, default=repr)
        data = text.encode("utf-8", "surrogatepass" if kind != LOG_STRING else "replace")
        end = self.committed + _RECORD.size + -(-len(data) // 8) * 8
        if end > LOG_BYTES:
            self.dropped += 1
            return
        _RECORD.pack_into(self.buffer, self.committed, kind, len(data), id)
        self.buffer[self.committed + _RECORD.size : self.committed + _RECORD.size + len(data)] = data
        self.committed = end

    def read(self, first: int, last: int) -> memoryview:
        """The committed bytes first … last - 1, without a copy."""
        return memoryview(self.buffer)[max(first, _COMMITTED.size) : min(last, self.committed)]

    def close(self) -> None:
        self.buffer.close()
