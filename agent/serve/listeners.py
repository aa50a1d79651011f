"""The sockets on which an agent takes requests: a path for users of this machine, a port for holders of the job's keys.

Held by the server, on the agent's thread.  Invariant: a port takes messages only from clients that have proved by CURVE
that they hold a key of this job (authenticator.py); that proof also settles what they may request.
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
from .authenticator import DOMAIN, Authenticator, PathConnections

# A client that has not authenticated in this time is dropped, because each connection of a port scanner takes a
# descriptor.  It must not be short: answering the handshake needs the GIL.
_HANDSHAKE_MS = 10_000
_QUEUED_MESSAGES = 64  # per client, in each direction: 13 MB of rows at most
# At the port.  One more and all are dropped until the next second, because the job needs its descriptors.
_MOST_CONNECTIONS = 64
_HEARTBEAT_MS = 15_000  # a client whose host has vanished is dropped after two of them


class CannotListen(Exception):
    """The port is not available.  The bootstrap passes probe_code on to the command."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.probe_code = code


class Listener:
    """One socket.  Its clients have the role `role`, or where that is None the role of their key."""

    def __init__(self, socket: Any, role: str | None = None) -> None:
        self.socket, self._role = socket, role

    def role_of(self, frame: Any) -> str:
        """The role that the authenticator gave to libzmq, which a client cannot override; "" if there is none."""
        with contextlib.suppress(zmq.ZMQError):
            return self._role or str(frame.get("User-Id"))
        return ""


class Listeners:
    """wait() and maintain() on the agent's thread; wake() on any thread."""

    def __init__(self, endpoint: str, uids: set[int], take: Callable[[Listener], None]) -> None:
        """Listen at this path for processes of these users, who may do everything; take: reads its requests."""
        self._take = take
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 1024)
        self._poller = zmq.Poller()
        self._handlers: dict[Any, Callable[[], None]] = {}
        self._port: _Port | None = None
        self._watch(self._wake, self._clear_wake)
        socket = self._router()
        for uid in sorted(uids):
            socket.setsockopt(zmq.IPC_FILTER_UID, uid)
        # Both exist before bind() lets anybody connect.
        self._authenticator, self._path = Authenticator(self._context), PathConnections(self._context, socket)
        self._watch(self._path.events, self._path.count)
        self._watch(self._authenticator.requests, partial(self._authenticator.answer, self._path))
        socket.bind(endpoint)
        self._watch(socket, partial(take, Listener(socket, wire.CONTROL)))

    @property
    def port(self) -> int | None:
        return self._port.number if self._port is not None else None

    def listen(self, address: str, port: int, secret: str, roles: Mapping[str, str]) -> None:
        """Listen for key holders at this numeric address; port 0: any free one.  Before run() or on the agent's thread.

        roles: public key in hex -> role.  Raises CannotListen.
        """
        if not zmq.has("curve"):
            raise CannotListen("cannot-listen", f"{address}:{port}: its libzmq has no CURVE")
        self._authenticator.roles = {bytes.fromhex(public): role.encode() for public, role in roles.items()}
        socket = self._router()
        try:
            self._port = _Port(self._context, socket, address, port, secret)
        except zmq.ZMQError as error:
            socket.close()
            code = "port-in-use" if error.errno == errno.EADDRINUSE else "cannot-listen"
            why = os.strerror(error.errno or 0)
            raise CannotListen(code, f"{address}:{port}: {why}") from None
        self._watch(self._port.events, self._port.count)
        self._watch(socket, partial(self._take, Listener(socket)))

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # closed, or 2^64 - 1 wakes are pending: it is awake
            os.eventfd_write(self._wake, 1)

    def wait(self, milliseconds: int) -> None:
        """Handle what has arrived, or arrives within this time."""
        for source, _ in self._poller.poll(milliseconds):
            self._handlers[source]()

    def maintain(self) -> None:
        """Once a second: reopen a port that was shut, and reset the count of refused clients."""
        self._path.reset_refused()
        if self._port is not None:
            self._port.reopen()

    def close(self, linger_ms: int) -> None:
        self._path.close()
        if self._port is not None:
            self._port.socket.disable_monitor()
        for socket in self._sockets():
            socket.close(linger=linger_ms)
        self._handlers.clear()
        self._take = noop
        self._context.term()
        os.close(self._wake)

    def abandon(self) -> list[Any]:
        """In a forked child: close the copies of the parent's descriptors.  The result must never be collected."""
        os.close(self._wake)
        if self.port is not None:
            _close_copies(self.port)
        return [*self._sockets(), self._context]

    def _sockets(self) -> list[Any]:
        return [source for source in self._handlers if not isinstance(source, int)]

    def _watch(self, source: Any, handler: Callable[[], None]) -> None:
        self._handlers[source] = handler
        self._poller.register(source, zmq.POLLIN)

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _router(self) -> Any:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_REQUEST_BYTES)
        socket.setsockopt(zmq.SNDHWM, _QUEUED_MESSAGES)
        socket.setsockopt(zmq.RCVHWM, _QUEUED_MESSAGES)
        return socket


class _Port:
    """A socket at a port, which is shut for a moment when too many clients connect."""

    def __init__(self, context: zmq.Context[Any], socket: Any, address: str, port: int, secret: str) -> None:
        self._connections, self._is_open = 0, True
        self.socket = socket
        socket.setsockopt(zmq.IPV6, ":" in address)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        socket.setsockopt(getattr(zmq, "ZAP_ENFORCE_DOMAIN", 93), 1)  # else no authenticator would mean no check
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.bind(f"tcp://{f'[{address}]' if ':' in address else address}:{port or '*'}")
        self._endpoint = socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self.number = int(self._endpoint.rpartition(":")[2])
        socket.monitor("inproc://probe.port", zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.events = context.socket(zmq.PAIR)
        self.events.connect("inproc://probe.port")

    def count(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                (event,) = struct.unpack_from("=H", self.events.recv_multipart(zmq.NOBLOCK)[0])
                self._connections = max(0, self._connections + (1 if event == zmq.EVENT_ACCEPTED else -1))
        if self._is_open and self._connections > _MOST_CONNECTIONS:
            self.socket.unbind(self._endpoint)  # also ends the accepted connections, without an event for each
            self._is_open = False

    def reopen(self) -> None:
        if not self._is_open:
            with contextlib.suppress(zmq.ZMQError):  # libzmq may not have closed it yet: try in the next second
                self.socket.bind(self._endpoint)
                self._is_open, self._connections = True, 0


def _close_copies(port: int) -> None:
    """In a forked child: close the port's descriptors, or the port would stay taken as long as the child lives."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:") and _port_of(int(name)) == port:
                os.close(int(name))


def _port_of(descriptor: int) -> int | None:
    """The local port of a TCP socket: shared by the listening socket and all that it has accepted; None for others."""
    sockets = sys.modules["_socket"]
    socket = sockets.socket(fileno=descriptor)
    try:
        is_tcp = socket.family in (sockets.AF_INET, sockets.AF_INET6) and socket.type == sockets.SOCK_STREAM
        return int(socket.getsockname()[1]) if is_tcp else None
    finally:
        socket.detach()
