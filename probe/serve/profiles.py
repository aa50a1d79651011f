"""Profiles of agents' processes for clients on other hosts, each by a process of its own beside the job.

Held by server.  Only clients that may control get any.  Invariant: nothing here waits; an agent has one such profiler
at a time, and a profiler whose client says nothing for ten seconds is ended.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from .. import protocol as wire
from .agents import Agents
from .handover import PROFILER_MODULE
from .relay import Refused, Relay
from .scans import Request
from .sibling import ENDED, Sibling, why_not_started

_UNWANTED_S = 10.0  # without a word from the client
_ENDS_S = 15.0  # after it was told to end, which it does with its last deposit
_MOST_BYTES = 64 << 10  # of what it says
_MOST_S, _MOST_HZ, _BY_CHARACTERS = 3600.0, 1000.0, 200
_STDIN, _STDOUT = 0, 1
_NO_WORD = {"code": "agent", "message": f"Nothing beside it can profile it: {ENDED}.", "hint": ""}


class _Profiler:
    def __init__(self, request: Request, sibling: Sibling) -> None:
        self.request, self.sibling, self.said = request, sibling, b""
        self.wanted = time.monotonic()
        self.told_to_end: float | None = None

    def send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, which its socket tells
            self.sibling.socket.send(line + b"\n")

    def tell_to_end(self) -> None:
        """Anything that it gets ends it."""
        if self.told_to_end is None:
            self.told_to_end = time.monotonic()
            self.send(b"")


class Profiles:
    """take() each request about an agent; tidy() once a second.  given: as the server has it."""

    def __init__(self, given: dict[str, Any], agents: Agents, relay: Relay) -> None:
        self._given, self._agents, self._relay = given, agents, relay
        self._running: dict[bytes, _Profiler] = {}  # by agent

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def take(self, request: Request, header: Mapping[str, Any]) -> bool:
        """Whether it is one for a profile, or about one.  Raises Refused, LookupError."""
        if header["kind"] == wire.SAMPLE:
            self._begin(request, header)
            return True
        running = self._running.get(request.agent)
        of = str(header.get("of", "")).encode() if header["kind"] == wire.CANCEL else request.id
        if running is None or running.request != request._replace(id=of):
            return False
        if header["kind"] == wire.CANCEL:
            running.tell_to_end()
        running.wanted = time.monotonic()
        return True

    def tidy(self) -> None:
        now = time.monotonic()
        for running in list(self._running.values()):
            if now - running.wanted > _UNWANTED_S:
                running.tell_to_end()
            if running.told_to_end is not None and now - running.told_to_end > _ENDS_S:
                self._end(running)

    def close(self) -> None:
        for running in list(self._running.values()):
            self._end(running)

    def _begin(self, request: Request, header: Mapping[str, Any]) -> None:
        if request.client.role != wire.CONTROL:
            raise Refused("read-only", f"this client may read, not control: {wire.SAMPLE} is refused")
        if request.agent in self._running:
            raise Refused("profiled", "a client of its server is profiling it. Wait until that ends.")
        if (pid := self._agents.pid(request.agent)) is None:
            raise Refused("gone", "it has ended, or was detached")
        order = _order(header)
        try:
            sibling = Sibling(PROFILER_MODULE, self._given, (_STDIN, _STDOUT))
        except OSError as error:
            raise Refused("agent", f"nothing beside it can profile it: {why_not_started(error)}") from None
        sibling.socket.setblocking(False)
        running = self._running[request.agent] = _Profiler(request, sibling)
        running.send(json.dumps({**order, "pid": pid}).encode())
        self._relay.watch(sibling.socket.fileno(), lambda: self._receive(running))

    def _receive(self, running: _Profiler) -> None:
        try:
            data = running.sibling.socket.recv(_MOST_BYTES)
        except OSError:
            data = b""
        running.said += data
        if not data or len(running.said) > _MOST_BYTES:
            self._end(running)

    def _end(self, running: _Profiler) -> None:
        """Its client gets what it has said."""
        del self._running[running.request.agent]
        self._relay.forget(running.sibling.socket.fileno())
        running.sibling.close()
        try:
            said = dict(json.loads(running.said))
        except ValueError:
            said = {"error": _NO_WORD}
        request = running.request
        self._relay.reply(request.client, [request.id, request.agent, wire.encode(wire.SAMPLED, told=said)])


def _order(header: Mapping[str, Any]) -> dict[str, Any]:
    """What launch asks a profiler for, within bounds.  Raises LookupError, TypeError, ValueError."""
    return {
        "seconds": min(float(header["seconds"]), _MOST_S),
        "steps": int(header["steps"]),
        "rate": min(max(float(header["rate"]), 0.1), _MOST_HZ),
        "patience_s": min(float(header["patience_s"]), _MOST_S),
        "by": str(header["by"])[:_BY_CHARACTERS],
    }
