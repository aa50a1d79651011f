"""Questions in SQL, passed on to a process of the server's own: DuckDB is neither in the training nor in the server.

Held by server.  The process (ANSWERS_MODULE) starts with the first question and keeps what it has read and derived, so
that a second answer takes milliseconds.  It has one question at a time; parts wait for their turn, since a query has to
have those of all hosts.  Invariant: nothing here waits, and whatever is not answered here is declined before anything
of an answer is sent, so the command answers it itself.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any, NamedTuple

from .. import protocol as wire
from ..client.agent_socket import AgentSocket
from ..host.processes import is_stopped, namespace, resident_bytes
from .agents import Agents
from .confinement import memory_share, spare_memory
from .handover import ANSWERS_MODULE
from .relay import Client, Relay
from .sibling import Sibling

_IDLE_S = 600.0  # without a question, after which its memory is given back
_ENDS_S = 5.0  # after it was withdrawn, before the process that does not end it is ended
_UNWANTED_S = 10.0  # without a word from who has asked
_MOST_WAITING = 16  # for a part, while another question is being answered
_FAILED_S = 60.0  # once it has ended by itself twice within them, it is not started again until they are over


class _Question(NamedTuple):
    number: bytes
    client: Client
    id: bytes


class Answers:
    """take() each request about a question; tidy() once a second.  given: as the server has it."""

    def __init__(self, given: dict[str, Any], agents: Agents, relay: Relay) -> None:
        self._given, self._agents, self._relay = given, agents, relay
        self._process: AgentSocket | None = None
        self._sibling: Sibling | None = None
        self._count = 0
        self._asked: _Question | None = None
        self._wanted = self._used = time.monotonic()
        self._withdrawn: float | None = None
        self._most_memory = memory_share()
        self._failed = deque[float](maxlen=2)
        self._waiting: dict[tuple[Client, bytes], tuple[dict[str, Any], float]] = {}  # since when they are wanted

    @property
    def is_busy(self) -> bool:
        return self._asked is not None or bool(self._waiting)

    def take(self, client: Client, id: bytes, request: dict[str, Any]) -> None:
        """Raises WireError for a question that is not answered here."""
        if request["kind"] in (wire.QUERY, wire.PART):
            self._ask(client, id, request)
            return
        of = str(request.get("of", "")).encode() if request["kind"] == wire.CANCEL else id
        if (client, of) in self._waiting and request["kind"] == wire.CANCEL:
            del self._waiting[client, of]
            self._decline(client, of, "declined: cancelled")
        elif (client, of) in self._waiting:  # which keeps its place
            self._waiting[client, of] = self._waiting[client, of][0], time.monotonic()
        elif self._asked is not None and (client, of) == self._asked[1:3]:
            self._wanted = time.monotonic()
            if request["kind"] == wire.CANCEL:
                self._withdraw()
            else:
                self._send(self._asked.number, request)

    def _ask(self, client: Client, id: bytes, request: dict[str, Any]) -> None:
        is_part = request["kind"] == wire.PART
        if not client.frontend.role and not (is_part and client.role == wire.CONTROL):
            raise wire.WireError("declined: only users of this host are answered, and parts for who may run code here")
        if self._asked is not None and (not is_part or len(self._waiting) >= _MOST_WAITING):
            raise wire.WireError("declined: another question is being answered")
        if request.get("protocol") != wire.PROTOCOL:
            raise wire.WireError("declined: the server is of another version")
        ids = request.get("ids")
        if not (ids is None or (isinstance(ids, list) and all(isinstance(id, str) for id in ids))):
            raise wire.WireError("ids is no list of names")
        if not is_part and request.get("pids") != namespace(os.getpid(), "pid"):
            raise wire.WireError("declined: pids mean other processes here")
        if self._asked is not None:
            self._waiting[client, id] = request, time.monotonic()
        else:
            self._begin(client, id, request)

    def _begin(self, client: Client, id: bytes, request: dict[str, Any]) -> None:
        """Raises WireError."""
        agents = self._agents.processes(request.get("ids"))
        if self._process is None:
            self._start()
        self._count += 1
        self._asked, self._withdrawn = _Question(str(self._count).encode(), client, id), None
        self._wanted = self._used = time.monotonic()
        self._send(self._asked.number, {**request, "agents": agents})

    def _begin_next(self) -> None:
        """Where none is being answered: the one that has waited longest."""
        while self._asked is None and self._waiting:
            client, id = next(iter(self._waiting))
            try:
                self._begin(client, id, self._waiting.pop((client, id))[0])
            except wire.WireError as error:
                self._decline(client, id, str(error))

    def _decline(self, client: Client, id: bytes, why: str) -> None:
        self._relay.reply(client, [id, b"", wire.encode(wire.ERROR, code="agent", message=why)])

    def _receive(self) -> None:
        """Pass on what the process has answered."""
        if self._process is None:
            return
        for number, header, *payload in self._process.receive():
            asked = self._asked
            if asked is None or asked.number != number:
                continue
            delivered = self._relay.reply(asked.client, [asked.id, b"", header, *payload])
            if wire.decode(header)["kind"] in wire.TERMINAL:
                self._asked, self._used = None, time.monotonic()
            elif not delivered:
                self._withdraw()
        if self._process.ended:
            self._failed.append(time.monotonic())
            self.close()
        self._begin_next()

    def tidy(self) -> None:
        """Withdraw a question that nobody waits for; end a process that nobody asks, that cannot answer, that goes on
        with what was withdrawn, or that takes more memory than it may."""
        now = time.monotonic()
        self._waiting = {key: each for key, each in self._waiting.items() if now - each[1] <= _UNWANTED_S}
        if self._asked is not None and now - self._wanted > _UNWANTED_S:
            self._withdraw()
        if self._asked is not None and self._withdrawn is not None and now - self._withdrawn > _ENDS_S:
            self.close()
        if self._process is not None and self._asked is None and now - self._used > _IDLE_S:
            self.close()
        pid = self._sibling.pid if self._sibling is not None else 0
        held = resident_bytes(pid) if pid else 0
        if pid and (is_stopped(pid) or held > spare_memory(self._most_memory, held)):
            self.close()
        self._begin_next()

    def _withdraw(self) -> None:
        if self._asked is not None and self._withdrawn is None:
            self._withdrawn = time.monotonic()
            self._send(self._asked.number, {"kind": wire.CANCEL})

    def close(self) -> None:
        """End the process; whoever waits for it is told."""
        if self._asked is not None:
            self._decline(self._asked.client, self._asked.id, "the process that answers has ended")
            self._asked = None
        if self._process is not None and self._sibling is not None:
            self._relay.forget(self._process.fileno())
            self._sibling.close()
            self._process = self._sibling = None

    def _start(self) -> None:
        if len(self._failed) > 1 and time.monotonic() - self._failed[0] < _FAILED_S:
            raise wire.WireError("declined: the process that answers has just ended twice")
        try:
            self._sibling = Sibling(ANSWERS_MODULE, self._given)
        except OSError as error:
            raise wire.WireError(f"declined: {error.strerror}") from None
        self._process = AgentSocket("", self._sibling.socket)
        self._relay.watch(self._process.fileno(), self._receive)

    def _send(self, number: bytes, request: dict[str, Any]) -> None:
        if self._process is not None:
            self._process.send([number, wire.encode(**request)])
