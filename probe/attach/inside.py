"""Whether there is an agent in a process, told by the header that it keeps in memory.

Called by `attach`, which then leaves the process alone.  Nothing is asked of the target: /proc only.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

from ..processes import start_ticks
from ..streams import (
    HEADER_BYTES,
    HEADER_HALF_LAYOUT,
    HEADER_HALVES,
    HEADER_LAYOUT,
    HEADER_MAGIC,
    HEADER_NAME,
    HEADER_VERSION,
)

TRIES = 3  # a reader may meet the half that is just being rewritten


def agent_inside(pid: int) -> dict[str, Any] | None:
    """The facts of its agent; None when there is none, or none that we may see."""
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            if os.readlink(path).startswith(f"/memfd:{HEADER_NAME} "):
                return _own(pid, _read(path))
    except OSError:
        pass
    return None


def _own(pid: int, facts: dict[str, Any] | None) -> dict[str, Any] | None:
    """A child forked from an attached process may have inherited the descriptor, not the agent."""
    return facts if facts and facts.get("start_ticks") == start_ticks(pid) else None


def _read(path: str) -> dict[str, Any] | None:
    for _ in range(TRIES):
        with open(path, "rb", buffering=0) as file:
            facts = _parse(os.pread(file.fileno(), HEADER_BYTES, 0))
        if facts is not None:
            return facts
    return None


def _parse(header: bytes) -> dict[str, Any] | None:
    try:
        magic, version, active = struct.unpack_from(HEADER_LAYOUT, header)
        if magic != HEADER_MAGIC or version != HEADER_VERSION:
            return None
        start = HEADER_HALVES[active]
        (length,) = struct.unpack_from(HEADER_HALF_LAYOUT, header, start)
        facts = json.loads(header[start + 4 : start + 4 + length])
    except (struct.error, ValueError, IndexError):
        return None
    return facts if isinstance(facts, dict) else None
