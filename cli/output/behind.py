"""Writes on a thread of its own, so that who writes does not wait for a pager.

Used by cli/asking.py: the server gives an answer up if it hears nothing of the command that asked.  Invariant: what
comes is written in its order, and then the sink is closed; what the sink raises is raised by the next write or at the
end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import BinaryIO

from probe.errors import Interrupted

_LOOK_S = 0.1
_ENDS_S = 0.5  # after a piece is written, for a thread that is to write no more
MOST_BYTES = 64 << 20  # that wait to be written
_writing = set[threading.Event]()  # of each thread that writes, set once it has ended: what Ctrl-C does not confuse


class WrittenBehind:
    """write() pieces, then finish() or abandon().  opened: gives the sink, and closes it."""

    def __init__(self, opened: AbstractContextManager[BinaryIO]) -> None:
        self._opened, self._sink = opened, opened.__enter__()
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()
        self._error: Exception | None = None
        self._came = self._written = 0  # bytes
        self._is_abandoned = False
        self._ended, self._is_alone = threading.Event(), False  # alone: without the thread
        _writing.add(self._ended)
        try:
            threading.Thread(target=self._run, daemon=True).start()
        except RuntimeError:  # the system has none left
            self._is_alone = True
            _writing.discard(self._ended)

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be written that no more should come."""
        return self._came - self._written > MOST_BYTES and not (self._is_alone or self._ended.is_set())

    def write(self, piece: bytes | memoryview) -> int:
        """Raises what the sink has raised."""
        self._raise()
        self._came += len(piece)
        if self._is_alone:
            return self._sink.write(piece)
        self._pieces.put(bytes(piece))
        return len(piece)

    def finish(self, is_interrupted: Callable[[], bool]) -> None:
        """Wait until all is written.  Raises what the sink has raised, Interrupted."""
        self._pieces.put(None)
        if self._is_alone:
            self._run()
        while not self._ended.wait(_LOOK_S):
            if is_interrupted():
                self.abandon()
                raise Interrupted("Interrupted.")
        self._raise()

    def abandon(self) -> None:
        """Write no more than what is being written."""
        self._is_abandoned = True
        self._pieces.put(None)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            try:
                while (piece := self._pieces.get()) is not None and not self._is_abandoned:
                    self._sink.write(piece)
                    self._written += len(piece)
                self._sink.flush()
            finally:
                self._opened.__exit__(None, None, None)
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()
            _writing.discard(self._ended)


def is_stuck() -> bool:
    """Whether a pager takes nothing of what is still being written, so that stdout must not be touched any more: a
    thread holds its lock."""
    return not all(ended.wait(_ENDS_S) for ended in [*_writing])
