"""The server process: binds its sockets, passes requests on, and ends with its last agent.

Started by `keeper`, or by `probe serve --foreground`.  libzmq aborts its process for reasons that a client can bring
about; so nothing is in this process that could not be started again.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import zmq

from .. import protocol as wire
from ..host.processes import has_ended
from ..version import __version__
from .agents import Agents
from .answers import Answers
from .authenticator import DOMAIN, Authenticator
from .confinement import become, confine, memory_share
from .handover import CONFIG, IPC, SERVER, TCP, config, remove
from .profiles import Profiles
from .relay import Client, Frontend, Relay
from .sibling import Sibling
from .stacks import Stacks

_GRACE_S = 10.0  # for the first agent to come
_LEAVING_S = 20.0  # for agents that leave to say what they had to leave
_LAST_REPLIES_MS = 500  # to be sent, when the last agent is gone
_HANDSHAKE_MS = 10_000
_MOST_UNSENT = 1 << 14  # messages to one client: credit bounds what each of its ranks may send; with more it is dropped
_KEEPALIVE_S, _KEEPALIVE_TRIES = 15, 2  # a client whose host has vanished


class Server:
    """run() until no agent is left.  given: handover.config(); ipc, tcp: descriptors that listen already; look_s: the
    time between two looks for agents."""

    def __init__(
        self, given: dict[str, Any], agents: Agents, ipc: int = IPC, tcp: int = TCP, *, look_s: float = 1.0
    ) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 8192)
        self._agents, self._pid, self._look_s = agents, given["pid"], look_s
        frontends = [Frontend(self._router(ipc, given["endpoint"]), given["role"])]
        if given["key"]:
            roles = {bytes.fromhex(public): role.encode() for public, role in given["key"]["roles"].items()}
            authenticator = Authenticator(self._context, roles)
            frontends.append(Frontend(self._port(tcp, given["tcp"], given["key"]["secret"]), ""))
        self._relay = Relay(frontends, agents, self._answer)
        self._answers = Answers(given, agents, self._relay)
        self._stacks, self._profiles = Stacks(given, agents, self._relay), Profiles(given, agents, self._relay)
        self._relay.takers += [self._stacks.take, self._profiles.take]
        if given["key"]:
            self._relay.watch(authenticator.requests, authenticator.answer)

    def run(self) -> None:
        due = time.monotonic()
        patience = leaving = due + _GRACE_S
        while True:
            now = time.monotonic()
            if now >= due or self._relay.lost_agent:
                due, self._relay.lost_agent = now + self._look_s, False
                self._tidy()
                if self._agents.any_left():
                    patience, leaving = 0.0, now + _LEAVING_S
                elif (now > patience or has_ended(self._pid)) and not self._is_needed(now < leaving):
                    return
            self._relay.step(max(1, int((due - now) * 1000)))

    def _tidy(self) -> None:
        for part in (self._relay, self._answers, self._stacks, self._profiles):
            part.tidy()
        Sibling.reap()

    def _is_needed(self, agents_leave: bool) -> bool:
        """Whether somebody waits for an agent that is just leaving, or for an answer whose rows are there already."""
        return self._answers.is_busy or (agents_leave and (self._relay.is_busy() or self._profiles.is_busy))

    def close(self) -> None:
        for part in (self._answers, self._stacks, self._profiles, self._relay):
            part.close()
        self._context.destroy(linger=_LAST_REPLIES_MS)

    def _answer(self, client: Client, id: bytes, request: dict[str, Any]) -> bytes | None:
        """A request to the server itself; None if its answer comes later.  Raises WireError."""
        if request["kind"] in (wire.QUERY, wire.PART, wire.NEXT, wire.CANCEL):
            self._answers.take(client, id, request)
            return None
        if request["kind"] != wire.AGENTS:
            raise wire.WireError(f"unknown request {request['kind'][:40]!r}")
        if request.get("protocol") != wire.PROTOCOL:
            raise wire.WireError(f"this server speaks protocol {wire.PROTOCOL}, not {request.get('protocol')}")
        ids = request.get("ids")
        if not (ids is None or (isinstance(ids, list) and all(isinstance(id, str) for id in ids))):
            raise wire.WireError("ids is no list of names")
        said = {"protocol": wire.PROTOCOL, "version": __version__, "role": client.role}
        return wire.encode(wire.SERVING, **said, agents=self._agents.records(ids))

    # ---- sockets

    def _router(self, descriptor: int, endpoint: str, **options: Any) -> Any:
        """A socket at which clients connect; the descriptor listens already, and goes on when this process dies."""
        socket = self._context.socket(zmq.ROUTER)
        settings = {"LINGER": 0, "ROUTER_MANDATORY": 1, "MAXMSGSIZE": wire.MAX_REQUEST_BYTES, "RCVHWM": 0}
        settings |= {"SNDHWM": _MOST_UNSENT, **options}
        for name, value in settings.items():
            socket.setsockopt(getattr(zmq, name), value)
        socket.setsockopt(zmq.USE_FD, descriptor)
        socket.bind(endpoint)
        return socket

    def _port(self, descriptor: int, endpoint: str, secret: str) -> Any:
        curve = {"CURVE_SERVER": 1, "CURVE_SECRETKEY": secret.encode(), "ZAP_DOMAIN": DOMAIN, "ZAP_ENFORCE_DOMAIN": 1}
        return self._router(
            descriptor, endpoint, IPV6="[" in endpoint, HANDSHAKE_IVL=_HANDSHAKE_MS, TCP_KEEPALIVE=1,
            TCP_KEEPALIVE_IDLE=_KEEPALIVE_S, TCP_KEEPALIVE_INTVL=_KEEPALIVE_S, TCP_KEEPALIVE_CNT=_KEEPALIVE_TRIES,
            **curve,
        )  # fmt: skip


def main() -> None:
    """Of the process that the keeper starts; its exit status 0 says that it is not needed any more."""
    given, keeper = config(), os.getppid()
    prepared_process(given)
    server = Server(given, Agents(given["endpoint"], given["uid"]))
    server.run()
    server.close()
    if os.getppid() != keeper:  # which removes it when nothing listens any more
        remove(given["folder"])
    os._exit(0)


def prepared_process(given: dict[str, Any]) -> None:
    """Give up what a server does not need, and keep its sockets from what it starts."""
    for descriptor in (IPC, CONFIG, TCP):
        with contextlib.suppress(OSError):  # it has no port, or is a command, whose descriptors are none of these
            os.set_inheritable(descriptor, False)
    confine(SERVER, memory_share())
    become(given)
