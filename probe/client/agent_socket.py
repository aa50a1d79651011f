"""A connection to one agent's own socket, on this machine; nothing here waits.

Held by agent_link.  Invariant: what went wrong is kept as text and code, and no call raises.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence

from .. import protocol as wire

_READ_BYTES = 1 << 20


class AgentSocket:
    """ended: in words, why nothing more comes ("" as long as something may); code: of the agent's refusal, if it was
    one, "no-socket" if there was none at the path; connections: as ServerSocket has it."""

    is_lost = False
    connections = 1
    server_key = ""

    def __init__(self, path: str, connected: socket.socket | None = None) -> None:
        self.ended, self.code = "", ""
        self._unpacker = wire.Unpacker(wire.MAX_REPLY_BYTES)
        self._unsent: deque[memoryview] = deque()
        self._socket = connected or socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        try:
            if connected is None:
                self._socket.connect(path)
        except BlockingIOError:  # it accepts none now: it is stopped, or its thread has no time
            self.ended, self.code = "has more clients waiting than it takes", "full"
        except FileNotFoundError as error:
            self.ended, self.code = str(error.strerror), "no-socket"
        except ConnectionRefusedError as error:
            self.ended = str(error.strerror)
        except OSError as error:  # a path that is too long has no strerror
            self.ended, self.code = f"cannot be reached at {path}: {error.strerror or error}", "silent"

    @property
    def carrier(self) -> AgentSocket:
        """What the messages travel on: nothing else but this, see server_socket.Route."""
        return self

    def fileno(self) -> int:
        return self._socket.fileno()

    def is_pending(self) -> bool:
        """Whether there are messages although fileno() is not readable."""
        return False

    def look(self) -> None:
        """As ServerSocket has it."""

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, frames: Sequence[bytes]) -> None:
        """Send as far as the agent reads; flush() sends the rest."""
        if not self.ended:
            self._unsent.extend(memoryview(each) for each in wire.packed(frames) if len(each))
            self.flush()

    def flush(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent[0])
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError as error:  # why may be read still
            self._unsent.clear()
            self.ended = self.ended or os.strerror(error.errno or 0)

    def receive(self) -> Iterator[list[bytes]]:
        """The messages that have come, those of one read."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            data, self.ended = b"", self.ended or error.strerror or str(error)
        if not data:
            self.ended = self.ended or "it closed the connection"
            return
        try:
            for frames in self._unpacker.feed(data):
                if len(frames) == 2 and not frames[0]:
                    self._refused(frames[1])
                else:
                    yield frames
        except wire.WireError as error:
            self.ended, self.code = f"sent a malformed message: {error}", "protocol"

    def _refused(self, header: bytes) -> None:
        said = wire.decode(header)
        self.ended, self.code = str(said.get("message", "")), str(said.get("code", ""))

    def close(self) -> None:
        self._socket.close()
