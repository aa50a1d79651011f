"""Passes requests of ZeroMQ clients to the agents of this host, and their replies back.

Each client has a connection of its own to each agent that it asks, made with the client's role: what it may do is
decided by the agent, what it makes the agent keep is counted against it alone, and request ids need no translation.
Invariant: nothing here waits for a client or an agent, and what neither has taken is bounded.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import zmq

from .. import protocol as wire
from ..client.agent_socket import AgentSocket
from ..client.zmq_frames import receive_frames, send_frames
from .agents import Agents
from .scans import Request, Scans

_IDLE_S = 1.0  # after which a connection without a request is closed: it takes a descriptor of the job
_GIVEN_UP_S = 60.0  # likewise with nothing but requests that an agent answers at once, and this one has not
_AT_ONCE = {wire.HELLO, wire.SNAPSHOT, wire.FLIGHT, wire.PEERS, wire.SET, wire.ALIGN, wire.SERVE}
_MOST_CONNECTIONS = 48  # to one agent, which admits 64: readers on this host need some
_MESSAGES_AT_ONCE = 64
_OWN_HELLO = b"server"
# how headers of replies before the last begin
_PASSING = tuple(wire.encode(kind)[:-1] for kind in (wire.ROWS, wire.LOG, wire.OUT))


class Frontend(NamedTuple):
    """A socket at which clients connect.  role: that of each of them, "" where their keys settle it."""

    socket: Any
    role: str

    def role_of(self, frame: Any) -> str:
        """The role that the authenticator gave to libzmq, which a client cannot override; "" if there is none."""
        with contextlib.suppress(zmq.ZMQError):
            return self.role or str(frame.get("User-Id"))
        return ""


class Client(NamedTuple):
    """identity: as libzmq gave it.  The role is a part of it: who takes an identity over takes over no role."""

    frontend: Frontend
    identity: bytes
    role: str


class _Backend:
    """One client's connection to one agent."""

    def __init__(self, client: Client, agent: bytes, path: str) -> None:
        self.client, self.agent = client, agent
        self.socket = AgentSocket(path)
        self.pending: dict[bytes, str] = {}  # the kinds of requests without their terminal reply
        self.used = time.monotonic()
        self.send(_OWN_HELLO, wire.encode(wire.HELLO, protocol=wire.PROTOCOL, role=client.role, by="server"))

    def send(self, id: bytes, *frames: bytes) -> None:
        self.used = time.monotonic()
        self.socket.send([id, *frames])


class Relay:
    """step() again and again.  own: answers a client's request to the server itself with a header, or later.
    lost_agent: a connection broke off, so perhaps an agent has ended."""

    def __init__(
        self, frontends: list[Frontend], agents: Agents, own: Callable[[Client, bytes, dict[str, Any]], bytes | None]
    ) -> None:
        self._agents, self._own, self.lost_agent = agents, own, False
        self._scans = Scans(agents, self._send_rows)
        # of requests about agents, those that the server answers: whether it was one
        self.takers: list[Callable[[Request, dict[str, Any]], bool]] = []
        self._backends: dict[tuple[Client, bytes], _Backend] = {}
        self._by_fd: dict[int, _Backend] = {}
        self._poller = zmq.Poller()
        self._handlers: dict[Any, Callable[[], None]] = {}
        for frontend in frontends:
            self.watch(frontend.socket, partial(self._from_clients, frontend))

    def watch(self, socket: Any, handler: Callable[[], None]) -> None:
        """Call the handler when there is something to read."""
        self._handlers[socket] = handler
        self._poller.register(socket, zmq.POLLIN)

    def forget(self, socket: Any) -> None:
        """Watch it no more."""
        del self._handlers[socket]
        self._poller.unregister(socket)

    def step(self, milliseconds: int) -> None:
        """Pass on what has come, or comes within this time."""
        rest = self._scans.rest_s(milliseconds / 1e3)
        for source, events in self._poller.poll(min(milliseconds, math.ceil(rest * 1e3))):
            if source in self._handlers:
                self._handlers[source]()
            elif source in self._by_fd:  # not closed meanwhile
                self._from_agent(self._by_fd[source], events)
        self._scans.advance()

    def tidy(self) -> None:
        """Once a second: close connections that nobody uses now."""
        self._scans.tidy()
        now = time.monotonic()
        for backend in list(self._backends.values()):
            is_given_up = {*backend.pending.values()} <= _AT_ONCE and now - backend.used > _GIVEN_UP_S
            if is_given_up or (not backend.pending and now - backend.used > _IDLE_S):
                self._close(backend)

    def is_busy(self) -> bool:
        """Whether any client waits for an agent."""
        return any(backend.pending for backend in self._backends.values())

    def close(self) -> None:
        for backend in list(self._backends.values()):
            self._close(backend)

    # ---- from clients

    def _from_clients(self, frontend: Frontend) -> None:
        for _ in range(_MESSAGES_AT_ONCE):
            try:
                frames = receive_frames(frontend.socket)
            except zmq.Again:
                return
            role = frontend.role_of(frames[0])
            if role and 4 <= len(frames) <= wire.MOST_FRAMES and len(frames[1]) <= 64:
                identity, *request = (frame.bytes for frame in frames)
                self._request(Client(frontend, identity, role), request)

    def _request(self, client: Client, frames: list[bytes]) -> None:
        id, agent, header, *payload = frames
        try:
            request = wire.decode(header)
            if not agent and request["kind"] == wire.SEVERAL:
                self._pass_on(client, id, request["requests"])
                return
            if not agent:
                if (answer := self._own(client, id, request)) is not None:
                    self.reply(client, [id, agent, answer])
                return
            if not self._agents.has(agent):
                raise Refused("gone", "it has ended, or was detached")
            about = Request(client, agent, id)
            if self._scans.take(about, request, payload) or any(take(about, request) for take in self.takers):
                return
            if request["kind"] == wire.MEMORY:
                raise Refused("read-only", "memory is handed over at an agent's own socket alone")
            backend = self._backends.get((client, agent)) or self._connect(client, agent)
        except Refused as refused:
            self._fail(client, id, agent, *refused.args)
        except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
            self._fail(client, id, agent, "protocol", f"bad request: {type(error).__name__}: {error}")
        else:
            if request["kind"] == wire.HELLO:
                header = wire.encode(**{**request, "role": client.role})
            if wire.REPLIES.get(request["kind"]):
                backend.pending[id] = request["kind"]
            backend.send(id, header, *payload)
            self._watch(backend)

    def _pass_on(self, client: Client, id: bytes, requests: list[tuple[str, dict[str, Any]]]) -> None:
        """To agents that this client has asked before.  Raises LookupError, TypeError, ValueError: none gets any."""
        ready = [(self._backends[client, str(agent).encode()], wire.encode(**header)) for agent, header in requests]
        if any(wire.REPLIES.get(header["kind"], True) for _, header in requests):
            raise wire.WireError("they would have replies")
        for backend, encoded in ready:
            backend.send(id, encoded)
            self._watch(backend)

    def _connect(self, client: Client, agent: bytes) -> _Backend:
        others = [each for each in self._backends.values() if each.agent == agent]
        if len(others) >= _MOST_CONNECTIONS:
            idle = [each for each in others if not each.pending]
            if not idle:
                raise Refused("full", f"has {_MOST_CONNECTIONS} clients already that wait for answers")
            self._close(min(idle, key=lambda each: each.used))
        backend = self._backends[client, agent] = _Backend(client, agent, self._agents.paths[agent])
        self._by_fd[backend.socket.fileno()] = backend
        self._poller.register(backend.socket.fileno(), zmq.POLLIN)
        return backend

    def _fail(self, client: Client, id: bytes, agent: bytes, code: str, message: str) -> None:
        self.reply(client, [id, agent, wire.encode(wire.ERROR, code=code, message=message)])

    # ---- from agents

    def _from_agent(self, backend: _Backend, events: int) -> None:
        if events & zmq.POLLOUT:
            backend.socket.flush()
        for id, header, *payload in backend.socket.receive():
            if not header.startswith(_PASSING) and wire.decode(header)["kind"] in wire.TERMINAL:
                backend.pending.pop(id, None)
            if id != _OWN_HELLO and not self.reply(backend.client, [id, backend.agent, header, *payload]):
                self._drop(backend.client)
                return
        if backend.socket.ended:
            for id in backend.pending:
                code = backend.socket.code or "gone"
                self._fail(backend.client, id, backend.agent, code, backend.socket.ended)
            self._close(backend)
            self.lost_agent = True
        else:
            self._watch(backend)

    def reply(self, client: Client, frames: list[bytes]) -> bool:
        """False if the client is gone, or does not read."""
        try:
            send_frames(client.frontend.socket, [client.identity, *frames])
            return True
        except zmq.ZMQError:
            return False

    def _send_rows(self, request: Request, frames: list[bytes]) -> bool:
        return self.reply(request.client, [request.id, request.agent, *frames])

    def _drop(self, client: Client) -> None:
        self._scans.drop(client)
        for backend in [each for each in self._backends.values() if each.client == client]:
            self._close(backend)

    def _watch(self, backend: _Backend) -> None:
        events = zmq.POLLIN | (zmq.POLLOUT if backend.socket.has_unsent else 0)
        self._poller.modify(backend.socket.fileno(), events)

    def _close(self, backend: _Backend) -> None:
        fd = backend.socket.fileno()
        self._poller.unregister(fd)
        del self._by_fd[fd], self._backends[backend.client, backend.agent]
        backend.socket.close()


class Refused(Exception):
    """A request that cannot be served; (code, message) go to the client."""
