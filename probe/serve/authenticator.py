"""Decides who may connect to the port: libzmq asks it about each connection (ZAP, RFC 27), and the key proved settles
the role.

Used by server.py.  Invariant: a port admits only clients that have proved they hold a key of this job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import zmq

DOMAIN = b"probe"
_ADMITTED, _UNKNOWN = b"200", b"400"  # a refused client learns it and does not reconnect by itself


class Authenticator:
    """answer() when `requests` is readable.  roles: public key -> role."""

    def __init__(self, context: zmq.Context[Any], roles: dict[bytes, bytes]) -> None:
        self._roles = roles
        self.requests = context.socket(zmq.ROUTER)
        self.requests.setsockopt(zmq.LINGER, 0)
        self.requests.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Admit the clients that wait, if they hold a key."""
        for frames in received(self.requests):
            if len(frames) < 8:
                continue
            identity, _, version, id, _, _, _, mechanism, *proof = frames
            role = self._roles.get(proof[0]) if mechanism == b"CURVE" and proof else None
            status = _UNKNOWN if role is None else _ADMITTED
            with contextlib.suppress(zmq.ZMQError):  # the client has gone
                self.requests.send_multipart([identity, b"", version, id, status, b"", role or b"", b""], zmq.NOBLOCK)


def received(socket: Any) -> Iterator[list[bytes]]:
    """All messages that the socket holds now."""
    with contextlib.suppress(zmq.Again):
        while True:
            yield socket.recv_multipart(zmq.NOBLOCK)
