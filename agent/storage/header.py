"""The header memfd: facts about this process and its agent, for readers that can reach only its memory.

Invariant: the valid half of the two is never written to; new text goes into the other half, then one
integer is flipped.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from ...streams import (
    HEADER_BYTES,
    HEADER_HALF_LAYOUT,
    HEADER_HALVES,
    HEADER_LAYOUT,
    HEADER_MAGIC,
    HEADER_NAME,
    HEADER_VERSION,
)
from .memory import shared_memory


class Header:
    """Call write() on the agent's thread only."""

    def __init__(self) -> None:
        self.buffer = shared_memory(HEADER_NAME, HEADER_BYTES)
        self._active = 1

    def write(self, facts: dict[str, Any]) -> None:
        """Publish these facts, unless they are too long (a host name of megabytes?)."""
        text = json.dumps(facts, separators=(",", ":")).encode()
        if len(text) > HEADER_HALVES[1] - HEADER_HALVES[0] - 4:
            return
        self._active ^= 1
        start = HEADER_HALVES[self._active]
        struct.pack_into(HEADER_HALF_LAYOUT, self.buffer, start, len(text))
        self.buffer[start + 4 : start + 4 + len(text)] = text
        struct.pack_into(HEADER_LAYOUT, self.buffer, 0, HEADER_MAGIC, HEADER_VERSION, self._active)

    def close(self) -> None:
        self.buffer.close()
