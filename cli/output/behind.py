"""Writes on a thread of its own, so that who writes does not wait for a pager.

Used by cli/asking.py: the server gives an answer up if it hears nothing of the command that asked.  Invariant: what
comes is kept in memory until it is written, in its order; what the sink raises is raised by the next write or at the
end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import BinaryIO

from probe.errors import Interrupted

_LOOK_S = 0.1


class WrittenBehind:
    """write() pieces, then finish(): a thread of its own writes them to the sink."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, piece: bytes | memoryview) -> int:
        """Raises what the sink has raised."""
        self._raise()
        self._pieces.put(bytes(piece))
        return len(piece)

    def finish(self, is_interrupted: Callable[[], bool]) -> None:
        """Wait until all is written.  Raises what the sink has raised, Interrupted."""
        self._pieces.put(None)
        while self._thread.is_alive():
            self._thread.join(_LOOK_S)
            if is_interrupted():
                raise Interrupted("Interrupted.")
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (piece := self._pieces.get()) is not None:
                self._sink.write(piece)
            self._sink.flush()
        except Exception as error:
            self._error = error
