"""A client of one's own for an agent's socket, without our reader: what it sends need be no request."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

from probe import protocol as wire


class RawClient:
    """Every call waits, timeout_s at most."""

    def __init__(self, endpoint: str, timeout_s: float = 5.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        self.socket.connect(endpoint.removeprefix("ipc://"))
        self._unpacker = wire.Unpacker(wire.MAX_REPLY_BYTES)
        self._come: deque[list[bytes]] = deque()

    def send(self, frames: Sequence[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError):  # why, may be received still
            self.socket.sendall(b"".join(wire.packed(frames)))

    def receive(self) -> list[bytes]:
        """The frames of the next message.  Raises EOFError if the agent closed the connection, TimeoutError."""
        while not self._come:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self._come.extend(self._unpacker.feed(data))
        return self._come.popleft()

    def ask(self, id: bytes, kind: str, *payload: bytes, **fields: Any) -> None:
        self.send([id, json.dumps({"kind": kind, **fields}).encode(), *payload])

    def answer(self) -> tuple[dict[str, Any], list[bytes]]:
        frames = self.receive()
        return json.loads(frames[1]), frames[2:]

    def hello(self, role: str = wire.CONTROL, **fields: Any) -> dict[str, Any]:
        """The agent's answer."""
        said = {"protocol": wire.PROTOCOL, "version": "0", "by": "test", "role": role, **fields}
        self.ask(b"hello", wire.HELLO, **said)
        return self.answer()[0]

    def poll(self, seconds: float = 0.0) -> bool:
        """Whether something has come, or that the agent closed the connection."""
        return bool(self._come or select.select([self.socket], [], [], seconds)[0])

    def close(self) -> None:
        self.socket.close()
