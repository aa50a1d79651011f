"""A ZeroMQ connection to a job's server, which passes requests on to the agents of its host; nothing here waits.

Made by client.py, one for each server; a Route leads through it to one agent.  Invariant: what went wrong is kept as
text and code, and no call raises.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import zmq

from .. import protocol as wire
from ..keys import Key
from .zmq_frames import receive_frames, send_frames

_FAILED = 3  # handshakes without a success; a server that is just ending fails one
_NOT_ACCEPTED = 5  # connections that nothing accepted: a quarter of a second
_RECONNECT_MS = 50
_RECONNECT_S = 1.0  # without its connection, before a server counts as lost; it may start again meanwhile
_HEARTBEAT_MS = 2000  # to another host, which may vanish without a word
_MESSAGES_AT_ONCE = 256  # before the others and the deadline get their turn
_NEWS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_CLOSED
)


class ServerSocket:
    """ended: in words, why nothing more comes ("" as long as something may); code: the error's; server_key: the public
    key that the server must have; connections: how many there were, each with a server that knows nothing of earlier
    requests."""

    has_unsent = False  # libzmq keeps what cannot be sent yet

    def __init__(self, context: zmq.Context[Any], url: str, key: Key | None) -> None:
        self.url, self._key = url, key
        self.server_key = "" if key is None else key.server_public
        self.ended, self.code, self.connections = "", "", 0
        self._failed = self._not_accepted = 0
        self._lost_at = math.inf  # time.monotonic, as long as a connection that stood is missing
        self._socket: Any = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # credit bounds what comes
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_REPLY_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        if key is not None:
            self._socket.setsockopt(zmq.IPV6, "[" in url)
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, key.server_public.encode())
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, key.client.public.encode())
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, key.client.secret.encode())
            self._socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
        self._monitor = self._socket.get_monitor_socket(_NEWS)
        try:
            self._socket.connect(url)
        except zmq.ZMQError as error:  # a path that is too long for a socket
            self.ended = f"cannot be reached at {url}: {error.strerror}"

    def fileno(self) -> int:
        """Readable when something changes, not as long as something is there: see is_pending()."""
        return int(self._socket.get(zmq.FD))

    def is_pending(self) -> bool:
        """Whether there are messages to receive."""
        return bool(self._socket.get(zmq.EVENTS) & zmq.POLLIN)

    def send(self, frames: Sequence[bytes]) -> None:
        try:
            send_frames(self._socket, frames)
        except zmq.ZMQError as error:
            self.ended = self.ended or f"cannot be reached: {error.strerror}"

    def send_several(self, requests: Sequence[tuple[Route, dict[str, Any]]]) -> None:
        """Requests that have no reply, in one message."""
        parts = [[route.agent, header] for route, header in requests]
        self.send([b"", b"", wire.encode(wire.SEVERAL, requests=parts)])

    def flush(self) -> None:
        """As AgentSocket has it."""

    def receive(self) -> Iterator[list[Any]]:
        """The messages that have come, some at most: [request id, header, payload ...]."""
        for _ in range(_MESSAGES_AT_ONCE):
            try:
                id, _agent, *rest = receive_frames(self._socket)
            except (zmq.Again, ValueError):
                return
            yield [id.bytes, *(rest[:1] and [rest[0].bytes]), *(frame.buffer for frame in rest[1:])]

    def look(self) -> None:
        """Find out how the connection is; libzmq itself retries forever without a word."""
        while self._monitor.get(zmq.EVENTS) & zmq.POLLIN:
            self._take(int.from_bytes(self._monitor.recv_multipart()[0][:2], sys.byteorder))  # libzmq's own form of it
        if self._not_accepted >= _NOT_ACCEPTED:
            was = "has ended" if self.connections else "has ended, or is out of reach"
            self.ended, self.code = f"{was}: nothing listens at {self.url}", "gone" if self.connections else ""

    @property
    def is_lost(self) -> bool:
        """Whether the connection broke off, and was not made again for too long."""
        return time.monotonic() - self._lost_at > _RECONNECT_S

    def _take(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connections += 1
            self._lost_at, self._not_accepted = math.inf, 0
        elif event == zmq.EVENT_CLOSED:
            self._not_accepted += self._key is not None
        elif event == zmq.EVENT_DISCONNECTED:
            if self.connections and self._lost_at == math.inf:
                self._lost_at, self._not_accepted = time.monotonic(), 0
        elif self._key is not None and not self.connections:
            self._failed += 1
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH or self._failed >= _FAILED:
                self.ended, self.code = f"does not accept the key {self._key.path}", "key-refused"

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)


class Route:
    """The way through a server to one agent; without an agent's id to the server itself."""

    def __init__(self, carrier: ServerSocket, agent: str = "") -> None:
        self.carrier, self.agent = carrier, agent

    def send(self, frames: Sequence[bytes]) -> None:
        self.carrier.send([frames[0], self.agent.encode(), *frames[1:]])

    def close(self) -> None:
        """The carrier stays, for the others."""
