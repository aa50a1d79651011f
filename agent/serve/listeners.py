"""The sockets at which an agent is asked: a path for users of this machine, a port for who has a key of the job.

Held by the server, on the agent's thread.  The one invariant: at a port nobody's word is heard who has not proved by
CURVE that he has a key of this job (authenticator.py), and what he may ask is settled then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import zmq

from ... import protocol as wire
from ..noop import noop
from .authenticator import DOMAIN, Authenticator, Room

# Who has not proved in this time who he is, is dropped: a scanner's connections hold a descriptor each.  The answer to
# his proof takes the GIL, so it must not be short.
_HANDSHAKE_MS = 10_000
_QUEUED = 64  # messages that wait for a client, or of a client: 13 MB of rows at most
_MOST = 64  # connections at the port; one more and all are dropped, till the next second: the job needs descriptors
_HEARTBEAT_MS = 15_000  # a client whose host has vanished is dropped after two of them


class CannotListen(Exception):
    """The port cannot be had; probe_code is for the command, as the bootstrap passes it on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.probe_code = code


class Listener:
    """One socket; what who comes through it may do is `role`, or where that is None what his key is for."""

    def __init__(self, socket: Any, role: str | None = None) -> None:
        self.socket, self._role = socket, role

    def role_of(self, frame: Any) -> str:
        """As the guard has said it to libzmq, which takes no word of the client's in its place; "" for nobody."""
        with contextlib.suppress(zmq.ZMQError):
            return self._role or str(frame.get("User-Id"))
        return ""


class Listeners:
    """wait() and tend() on the agent's thread; wake() on any."""

    def __init__(self, endpoint: str, uids: set[int], take: Callable[[Listener], None]) -> None:
        """At this path for processes of these users, who may do everything; take: the requests at a door."""
        self._take = take
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 1024)
        self._poller = zmq.Poller()
        self._hear: dict[Any, Callable[[], None]] = {}
        self._port: _Port | None = None
        self._watch(self._wake, self._awake)
        socket = self._router()
        for uid in sorted(uids):
            socket.setsockopt(zmq.IPC_FILTER_UID, uid)
        self._guard, self._room = Authenticator(self._context), Room(self._context, socket)  # before anybody can come
        self._watch(self._room.news, self._room.count)
        self._watch(self._guard.asked, partial(self._guard.answer, self._room))
        socket.bind(endpoint)
        self._watch(socket, partial(take, Listener(socket, wire.CONTROL)))

    @property
    def port(self) -> int | None:
        return self._port.number if self._port is not None else None

    def listen(self, address: str, port: int, secret: str, roles: Mapping[str, str]) -> None:
        """For who has a key, at this address in numbers; port 0: any.  Before run(), or on the agent's thread.

        roles: public key, in hex -> what it is for.  Raises CannotListen.
        """
        if not zmq.has("curve"):
            raise CannotListen("cannot-listen", "cannot listen: its libzmq has no CURVE")
        self._guard.roles = {bytes.fromhex(public): role.encode() for public, role in roles.items()}
        socket = self._router()
        try:
            self._port = _Port(self._context, socket, address, port, secret)
        except zmq.ZMQError as error:
            socket.close()
            code = "port-in-use" if error.errno == errno.EADDRINUSE else "cannot-listen"
            why = os.strerror(error.errno or 0)
            raise CannotListen(code, f"cannot listen at {address}:{port}: {why}") from None
        self._watch(self._port.news, self._port.count)
        self._watch(socket, partial(self._take, Listener(socket)))

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # closed, or 2^64 - 1 wakes ahead: it is awake
            os.eventfd_write(self._wake, 1)

    def wait(self, milliseconds: int) -> None:
        """Hear whoever has come; nobody is waited for longer than that."""
        for source, _ in self._poller.poll(milliseconds):
            self._hear[source]()

    def tend(self) -> None:
        """Once a second: open a port again that was shut, and count anew who was sent away."""
        self._room.tidy()
        if self._port is not None:
            self._port.open()

    def close(self, linger_ms: int) -> None:
        self._room.close()
        if self._port is not None:
            self._port.socket.disable_monitor()
        for socket in self._sockets():
            socket.close(linger=linger_ms)
        self._hear.clear()
        self._take = noop
        self._context.term()
        os.close(self._wake)

    def abandon(self) -> list[Any]:
        """In a forked child: let go of the parent's descriptors; what is returned must never be collected."""
        os.close(self._wake)
        if self.port is not None:
            _close_copies(self.port)
        return [*self._sockets(), self._context]

    def _sockets(self) -> list[Any]:
        return [source for source in self._hear if not isinstance(source, int)]

    def _watch(self, source: Any, hear: Callable[[], None]) -> None:
        self._hear[source] = hear
        self._poller.register(source, zmq.POLLIN)

    def _awake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _router(self) -> Any:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_REQUEST_BYTES)
        socket.setsockopt(zmq.SNDHWM, _QUEUED)
        socket.setsockopt(zmq.RCVHWM, _QUEUED)
        return socket


class _Port:
    """A socket at a port, which is shut for a moment where too many come."""

    def __init__(self, context: zmq.Context[Any], socket: Any, address: str, port: int, secret: str) -> None:
        self._connections, self._is_open = 0, True
        self.socket = socket
        socket.setsockopt(zmq.IPV6, ":" in address)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        socket.setsockopt(getattr(zmq, "ZAP_ENFORCE_DOMAIN", 93), 1)  # or everybody came in at a moment without a guard
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.bind(f"tcp://{f'[{address}]' if ':' in address else address}:{port or '*'}")
        self._endpoint = socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self.number = int(self._endpoint.rpartition(":")[2])
        socket.monitor("inproc://probe.port", zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.news = context.socket(zmq.PAIR)
        self.news.connect("inproc://probe.port")

    def count(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                (event,) = struct.unpack_from("=H", self.news.recv_multipart(zmq.NOBLOCK)[0])
                self._connections = max(0, self._connections + (1 if event == zmq.EVENT_ACCEPTED else -1))
        if self._is_open and self._connections > _MOST:
            self.socket.unbind(self._endpoint)  # ends the connections that it has accepted, and says nothing of them
            self._is_open = False

    def open(self) -> None:
        if not self._is_open:
            with contextlib.suppress(zmq.ZMQError):  # libzmq closes at its leisure: the next second, then
                self.socket.bind(self._endpoint)
                self._is_open, self._connections = True, 0


def _close_copies(port: int) -> None:
    """In a forked child: of the port's descriptors, or the port would be taken as long as the child lives."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:") and _port_of(int(name)) == port:
                os.close(int(name))


def _port_of(descriptor: int) -> int | None:
    """Its own, of a TCP socket: of one that listens, and of all that it has accepted."""
    sockets = sys.modules["_socket"]
    socket = sockets.socket(fileno=descriptor)
    try:
        is_tcp = socket.family in (sockets.AF_INET, sockets.AF_INET6) and socket.type == sockets.SOCK_STREAM
        return int(socket.getsockname()[1]) if is_tcp else None
    finally:
        socket.detach()
