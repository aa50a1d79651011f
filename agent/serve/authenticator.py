"""Decides who may connect: libzmq asks it about each connection (ZAP, RFC 27), and the key proved settles the role.

Used by listeners.py, on the agent's thread.  Invariant: a port admits only clients that have proved they hold a key of
this job; and while too many are connected nobody else is admitted, because each connection takes a file descriptor of
the training process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import zmq

CLIENTS = 64
DOMAIN = b"probe"
_EVENTS = "inproc://clients"
_ADMITTED, _UNKNOWN, _FULL = b"200", b"400", b"500"  # a refused client learns it and does not reconnect by itself
_PLAIN, _CURVE = b"NULL", b"CURVE"


class PathConnections:
    """Counts the clients connected at the path.  Made before its socket is bound."""

    def __init__(self, context: zmq.Context[Any], socket: Any) -> None:
        self._socket = socket
        self._connections = 0
        self._refused = 0  # of the connections; they disconnect in a moment
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        socket.monitor(_EVENTS, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.events = context.socket(zmq.PAIR)
        self.events.setsockopt(zmq.LINGER, 0)
        self.events.setsockopt(zmq.RCVHWM, 0)  # unlimited: a full queue would block zmq's own thread
        self.events.connect(_EVENTS)

    def count(self) -> None:
        """Count connections, including those still to be admitted; a disconnect counts as a refused client's first."""
        for frames in received(self.events):
            if int.from_bytes(frames[0][:2], "little") == zmq.EVENT_ACCEPTED:
                self._connections += 1
            else:
                self._connections -= 1
                self._refused -= self._refused > 0

    def free(self, waiting: int) -> int:
        """How many of the `waiting` clients can be admitted."""
        self.count()
        return CLIENTS - (self._connections - self._refused - waiting)

    def refuse(self) -> None:
        self._refused += 1

    def reset_refused(self) -> None:
        """A client that disconnected before it was refused causes no further event."""
        self.count()
        self._refused = 0

    def close(self) -> None:
        """Call before the socket is closed."""
        self._socket.disable_monitor()


class Authenticator:
    """answer() when `requests` is readable.  roles: public key -> role."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.roles: dict[bytes, bytes] = {}
        self.requests = context.socket(zmq.ROUTER)
        self.requests.setsockopt(zmq.LINGER, 0)
        self.requests.bind("inproc://zeromq.zap.01")

    def answer(self, path: PathConnections) -> None:
        """Admit waiting clients: at the path while there is room, at the port if they hold a key."""
        waiting = [frames for frames in received(self.requests) if len(frames) >= 8]
        free = path.free(sum(frames[7] == _PLAIN for frames in waiting))
        for identity, _, version, id, _, _, _, mechanism, *proof in waiting:
            status, role = self._judge(mechanism, proof, free > 0)
            free -= mechanism == _PLAIN
            if status == _FULL:
                path.refuse()
            with contextlib.suppress(zmq.ZMQError):  # the client has gone
                self.requests.send_multipart([identity, b"", version, id, status, b"", role, b""], zmq.NOBLOCK)

    def _judge(self, mechanism: bytes, proof: list[bytes], has_room: bool) -> tuple[bytes, bytes]:
        """The status for libzmq, and the role."""
        if mechanism == _PLAIN:
            return _ADMITTED if has_room else _FULL, b""
        role = self.roles.get(proof[0]) if mechanism == _CURVE and proof else None
        return (_UNKNOWN, b"") if role is None else (_ADMITTED, role)


def received(socket: Any) -> Iterator[list[bytes]]:
    """All messages that the socket holds now."""
    with contextlib.suppress(zmq.Again):
        while True:
            yield socket.recv_multipart(zmq.NOBLOCK)
