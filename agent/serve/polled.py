"""The descriptors that the agent's thread waits for.

Held by connections.  Invariant: a number that the job has closed, and perhaps uses again, is lost: it is not polled any
more, and whatever it is now is neither read nor closed.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import Any

from ..storage.descriptors import close, is_same

LOST = 0  # in place of events


class Polled:
    """On one thread."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._known: dict[int, os.stat_result] = {}

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._known

    def add(self, descriptor: int, events: int) -> None:
        self._known[descriptor] = os.fstat(descriptor)
        self._poll.register(descriptor, events)

    def change(self, descriptor: int, events: int) -> None:
        self._poll.modify(descriptor, events)

    def is_lost(self, descriptor: int) -> bool:
        return not is_same(descriptor, self._known.get(descriptor))

    def remove(self, descriptor: int) -> os.stat_result | None:
        """What it was when it was added."""
        if descriptor in self._known:
            self._poll.unregister(descriptor)
        return self._known.pop(descriptor, None)

    def close(self, socket: Any) -> None:
        """Remove it, and close it if it is still what was added."""
        close(socket, self.remove(socket.fileno()))

    def wait(self, milliseconds: int) -> Iterator[tuple[int, int]]:
        """(descriptor, events) of each at which something comes within this time."""
        for descriptor, events in self._poll.poll(milliseconds):
            if descriptor in self._known:  # the one before may have removed it
                yield descriptor, LOST if self.is_lost(descriptor) else events
