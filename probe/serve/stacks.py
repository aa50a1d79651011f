"""Stacks of agents' processes, read by a process of the server's own: the server faces a network and reads no memory.

Held by server, whose clients ask for them with either role.  The process (STACKS_MODULE) starts with the first request
and ends after a minute without one.  Invariant: nothing here waits, and what clients wait for is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .. import protocol as wire
from ..client.agent_socket import AgentSocket
from .agents import Agents
from .handover import STACKS_MODULE
from .relay import Refused, Relay
from .scans import Request
from .sibling import ENDED, Sibling, why_not_started

_IDLE_S = 60.0  # without a request, after which the process is ended
_LATE_S = 30.0  # for one answer, after which it is started anew
_MOST_PER_CLIENT, _MOST = 1024, 8192  # requests that are not answered yet; our own clients have one for each rank


class Stacks:
    """take() each request about an agent; tidy() once a second.  given: as the server has it."""

    def __init__(self, given: dict[str, Any], agents: Agents, relay: Relay) -> None:
        self._given, self._agents, self._relay = given, agents, relay
        self._process: tuple[Sibling, AgentSocket] | None = None
        self._waiting: dict[bytes, tuple[Request, float]] = {}  # by number: since when
        self._count, self._used = 0, time.monotonic()

    def take(self, request: Request, header: Mapping[str, Any]) -> bool:
        """Whether it is one for stacks.  Raises Refused."""
        if header["kind"] != wire.STACKS:
            return False
        pid = self._agents.pid(request.agent)
        if pid is None:
            raise Refused("gone", "it has ended, or was detached")
        own = sum(each.client == request.client for each, _ in self._waiting.values())
        if own >= _MOST_PER_CLIENT or len(self._waiting) >= _MOST:
            raise Refused("agent", f"{own} requests of this client for stacks are waiting already")
        self._count, self._used = self._count + 1, time.monotonic()
        number = str(self._count).encode()
        _, socket = self._process = self._process or self._start()
        self._waiting[number] = request, self._used
        socket.send([number, wire.encode(wire.STACKS, pid=pid, id=request.agent.decode())])
        return True

    def tidy(self) -> None:
        now = time.monotonic()
        if any(now - since > _LATE_S for _, since in self._waiting.values()) or (
            not self._waiting and now - self._used > _IDLE_S
        ):
            self.close()

    def close(self) -> None:
        """End the process; whoever waits for it is told."""
        if self._process is not None:
            sibling, socket = self._process
            self._relay.forget(socket.fileno())
            socket.close()
            sibling.close()
            self._process = None
        for request, _ in self._waiting.values():
            header = wire.encode(wire.ERROR, code="agent", message=f"nothing beside it can read its stacks: {ENDED}")
            self._relay.reply(request.client, [request.id, request.agent, header])
        self._waiting.clear()

    def _start(self) -> tuple[Sibling, AgentSocket]:
        try:
            sibling = Sibling(STACKS_MODULE, self._given)
        except OSError as error:
            raise Refused("agent", f"nothing beside it can read its stacks: {why_not_started(error)}") from None
        socket = AgentSocket("", sibling.socket)
        self._relay.watch(socket.fileno(), self._receive)
        return sibling, socket

    def _receive(self) -> None:
        """Pass on what the process has answered."""
        if self._process is None:
            return
        _, socket = self._process
        for number, *frames in socket.receive():
            request, _ = self._waiting.pop(number, (None, 0.0))
            if request is not None:
                self._relay.reply(request.client, [request.id, request.agent, *frames])
        if socket.ended:
            self.close()
