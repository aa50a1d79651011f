"""Who may come in: libzmq asks us about each who comes (ZAP, RFC 27), and what he proves settles what he may ask.

Used by listeners.py, on the agent's thread.  The one invariant: at a port nobody is let in who has not proved that he
has a key of this job; and while too many are here nobody else gets in, for each connection is a descriptor of the
training's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import zmq

CLIENTS = 64
DOMAIN = b"probe"
_NEWS = "inproc://clients"
_IN, _UNKNOWN, _FULL = b"200", b"400", b"500"  # who is refused is told so, and does not come again by itself
_PLAIN, _BY_KEY = b"NULL", b"CURVE"


class Room:
    """How many readers are connected at the path; made before its socket is bound."""

    def __init__(self, context: zmq.Context[Any], socket: Any) -> None:
        self._socket = socket
        self._connections = 0
        self._sent_away = 0  # of these; they are gone in a moment
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        socket.monitor(_NEWS, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.news = context.socket(zmq.PAIR)
        self.news.setsockopt(zmq.LINGER, 0)
        self.news.setsockopt(zmq.RCVHWM, 0)  # full, it would hold up zmq's own thread
        self.news.connect(_NEWS)

    def count(self) -> None:
        """Who has come, those at the door included, and who has gone, those who were sent away first."""
        for frames in all_of(self.news):
            if int.from_bytes(frames[0][:2], "little") == zmq.EVENT_ACCEPTED:
                self._connections += 1
            else:
                self._connections -= 1
                self._sent_away -= self._sent_away > 0

    def left(self, waiting: int) -> int:
        """For how many of those at the door there is room."""
        self.count()
        return CLIENTS - (self._connections - self._sent_away - waiting)

    def send_away(self) -> None:
        self._sent_away += 1

    def tidy(self) -> None:
        """Of those who were gone before they were sent away there is no news."""
        self.count()
        self._sent_away = 0

    def close(self) -> None:
        """Before the socket."""
        self._socket.disable_monitor()


class Authenticator:
    """answer() when `asked` can be read.  roles: public key -> what it is for."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.roles: dict[bytes, bytes] = {}
        self.asked = context.socket(zmq.ROUTER)
        self.asked.setsockopt(zmq.LINGER, 0)
        self.asked.bind("inproc://zeromq.zap.01")

    def answer(self, room: Room) -> None:
        """Those at the doors: at the path while there is room, at the port who has a key."""
        waiting = [frames for frames in all_of(self.asked) if len(frames) >= 8]
        left = room.left(sum(frames[7] == _PLAIN for frames in waiting))
        for identity, _, version, id, _, _, _, mechanism, *proof in waiting:
            status, role = self._judge(mechanism, proof, left > 0)
            left -= mechanism == _PLAIN
            if status == _FULL:
                room.send_away()
            with contextlib.suppress(zmq.ZMQError):  # gone meanwhile
                self.asked.send_multipart([identity, b"", version, id, status, b"", role, b""], zmq.NOBLOCK)

    def _judge(self, mechanism: bytes, proof: list[bytes], room: bool) -> tuple[bytes, bytes]:
        if mechanism == _PLAIN:
            return _IN if room else _FULL, b""
        role = self.roles.get(proof[0]) if mechanism == _BY_KEY and proof else None
        return (_UNKNOWN, b"") if role is None else (_IN, role)


def all_of(socket: Any) -> Iterator[list[bytes]]:
    with contextlib.suppress(zmq.Again):
        while True:
            yield socket.recv_multipart(zmq.NOBLOCK)
