"""The connection to one agent: its address, what is known about the agent, and what its socket reports.

Made by probe.client.client.  A process on this machine is also visible in /proc; one on another host only through what
it sends.  Invariant: pid names a process on this machine only where `here` holds; nothing looks into /proc otherwise.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any, NamedTuple

import zmq

from ..errors import EndpointError, ProbeError, SilentError
from ..host import agent_memory
from ..host.facts import Facts
from ..host.processes import has_ended, is_stopped, start_ticks
from ..keys import Key
from ..protocol import CONTROL, MAX_REPLY_BYTES
from .endpoints import Address

Header = dict[str, Any]

_FAILED_LOCALLY = 2  # handshakes before the first success; the first may meet a target that is just starting
_FAILED_AT_PORT = 3  # an agent that is just ending fails one
_NOT_ACCEPTED = 5  # connections that nothing accepted: a quarter of a second
_RECONNECT_S = 1.0  # without its connection, before a remote agent counts as lost; libzmq tries every 50 ms
_LAST_REPLY_S = 0.5  # an agent's last reply may be on its way when the agent is gone
_HEARTBEAT_MS = 2000  # libzmq's own thread answers, whatever holds the GIL there; it gives up after three
_NEWS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_CLOSED
)


class Loss(NamedTuple):
    """Why an agent will not answer: in words, and as the error of its requests; not for_good: it may come back."""

    why: str
    error: ProbeError
    for_good: bool = True


class Handshakes:
    """How a socket's handshakes went, from the events of its monitor; libzmq itself retries forever without a word.

    succeeded: one did, or the agent has answered; rejected: the agent's authenticator refused one, and libzmq does not
    retry; lost_at: when the connection broke after a success (time.monotonic), inf while it stands.
    """

    def __init__(self, at_port: bool) -> None:
        self._at_port = at_port
        self.succeeded, self.rejected, self.lost_at = False, False, math.inf
        self._failed = self._not_accepted = 0

    def take(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.succeeded, self.lost_at = True, math.inf
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.rejected = True
        elif event == zmq.EVENT_CLOSED:
            self._not_accepted += self._at_port
        elif not self.succeeded:
            # a local agent refuses by closing the connection; a port closes it for other reasons too
            self._failed += not self._at_port or event != zmq.EVENT_DISCONNECTED
        elif event == zmq.EVENT_DISCONNECTED and self.lost_at == math.inf:
            self.lost_at, self._not_accepted = time.monotonic(), 0

    @property
    def nothing_listens(self) -> bool:
        return self._not_accepted >= _NOT_ACCEPTED

    @property
    def refused(self) -> bool:
        return self.rejected or self._failed >= (_FAILED_AT_PORT if self._at_port else _FAILED_LOCALLY)


class AgentLink:
    """facts: the latest; pid: 0 until it is known; silent: why it does not answer, once that is known; gone: it never
    will, and its memory cannot be read (ended, not ours, another version); ended: its process has."""

    def __init__(self, context: zmq.Context[Any], address: Address, key: Key | None = None) -> None:
        self.address = address
        self._steps_numbered: tuple[Facts, int, str] | None = None
        self.facts = address.facts
        self.pid, self.here = address.pid or address.facts.pid, bool(address.pid)
        self.silent, self.gone, self.ended = "", False, False
        self._missing_since = math.inf  # the socket of an agent on this machine
        self.role = CONTROL
        self._key = key if address.url.startswith("tcp://") else None
        self.handshakes = Handshakes(self.at_port)
        self._context = context
        self.socket: Any = None
        self.monitor: Any = None  # of the socket, at a port; else of a second one, as long as it is watched
        self._scout: Any = None
        if address.url:
            self._connect(context)

    @property
    def at_port(self) -> bool:
        """Whether it is asked at a port, perhaps on another host: only its connection can be observed then."""
        return self._key is not None

    def _connect(self, context: zmq.Context[Any]) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)  # credit bounds what comes
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_REPLY_BYTES)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        if self._key is not None:
            self.socket.setsockopt(zmq.IPV6, "[" in self.address.url)
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, self._key.server_public.encode())
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, self._key.client.public.encode())
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, self._key.client.secret.encode())
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
            self.monitor = self.socket.get_monitor_socket(_NEWS)
        try:
            self.socket.connect(self.address.url)
        except zmq.ZMQError as error:  # a path that is too long for a socket
            self.close()
            raise SilentError(f"{self.name} cannot be reached at {self.address.url}: {error.strerror}.") from error

    def watch(self) -> None:
        """From now on refusal() has news.  A monitor costs too many descriptors to have one for each agent."""
        self._scout = self._context.socket(zmq.DEALER)
        self._scout.setsockopt(zmq.LINGER, 0)
        self.monitor = self._scout.get_monitor_socket(_NEWS)
        self._scout.connect(self.address.url)

    def unwatch(self) -> None:
        if self._scout is not None:
            self._scout.disable_monitor()
            self.monitor.close(linger=0)
            self._scout.close(linger=0)
            self._scout = self.monitor = None

    @property
    def unheard(self) -> bool:
        """Whether it has not answered yet, and nothing reports why."""
        return self.socket is not None and self.monitor is None and not self.handshakes.succeeded

    @property
    def facts(self) -> Facts:
        return self._facts

    @facts.setter
    def facts(self, said: Facts) -> None:
        self._said = self._facts = said
        if self._steps_numbered is not None:
            known, base, source = self._steps_numbered
            if (known.id, known.step_source) == (said.id, said.step_source):
                self._facts = said._replace(step_base=base, step_source=source)

    def number_steps(self, base: int, source: str) -> None:
        """Number its steps so for this connection, until the agent numbers them otherwise: with a key for reading the
        agent cannot be told."""
        self._steps_numbered = self._said, base, source
        self.facts = self._said

    @property
    def rank(self) -> int:
        return self.facts.rank or 0

    @property
    def name(self) -> str:
        """`Rank 3 (pid 4242)`, with its host if that is another one; the address as long as nothing else is known."""
        known = self.pid or self.facts.rank is not None
        return f"Rank {self.number}" if known else self.address.shown or self.address.url

    @property
    def number(self) -> str:
        """`3 (pid 4242)`, for lists of ranks."""
        if not self.pid:
            return str(self.rank)
        return f"{self.rank} ({'' if self.here else f'{self.host}, '}pid {self.pid})"

    @property
    def host(self) -> str:
        """The host of its process, "" for this machine."""
        return "" if self.here else self.facts.host or "another host"

    @property
    def readable(self) -> bool:
        """Whether its memory may be read."""
        return self.here and not self.gone

    def welcome(self, header: Header) -> None:
        """Take the agent's first reply, which tells whether its process runs on this machine."""
        self.facts = header["facts"]
        facts = self.facts  # perhaps with other numbers of steps
        self.role = str(header.get("role", CONTROL))
        if not self.address.pid:
            found = agent_memory.here(facts)
            self.pid, self.here = (facts.pid, False) if found is None else (found, True)

    def silence(self) -> SilentError:
        """The error of a request that had no answer."""
        return SilentError(f"{self.name} {self.why_silent()}.")

    def why_silent(self) -> str:
        """Why there is no answer, as far as that can be seen from outside."""
        if self.silent:
            return self.silent
        return f"is stopped (to let it go on: kill -CONT {self.pid})" if self.stopped else "does not answer"

    @property
    def stopped(self) -> bool:
        return self.here and is_stopped(self.pid)

    def refusal(self) -> Loss | None:
        """Read the monitor's events; the loss if no handshake succeeds, for a reason that will last."""
        while self.monitor.get(zmq.EVENTS) & zmq.POLLIN:
            event = self.monitor.recv_multipart()[0][:2]
            self.handshakes.take(int.from_bytes(event, sys.byteorder))  # libzmq's own form of it
        if self.handshakes.succeeded:
            return None
        if self.handshakes.nothing_listens:
            return self._lost(f"has ended: nothing listens at {self.address.url}", "gone")
        if not self.handshakes.refused:
            return None
        if self._key is None:
            full = self.handshakes.rejected
            return self._lost("has as many readers as it takes" if full else "belongs to another user, and refuses you")
        theirs, own = self.facts.server_key, self._key.server_public
        whose = f" (its own begins with {theirs[:6]}, this one with {own[:6]})" if theirs else ""
        why = f"does not accept the key {self._key.path}{whose}"
        hint = "Give the key it was attached with, or the part shared of that: --key FILE"
        return Loss(why, EndpointError(f"{self.name} {why}.", hint, "key-refused"))

    def _lost(self, why: str, code: str = "", for_good: bool = True) -> Loss:
        return Loss(why, SilentError(f"{self.name} {why}.", code=code), for_good)

    def disclaim(self, why: str) -> None:
        """Another agent answers at this address than the one that was looked for."""
        self.facts, self.pid, self.here = self.address.facts, self.address.facts.pid, False
        self.silent, self.gone, self.ended = why, True, True

    def loss(self) -> Loss | None:
        """The loss if the agent will not answer any more: its very process has ended (a zombie counts as ended), or the
        connection to another host is lost."""
        if not self.here:
            if time.monotonic() - self.handshakes.lost_at < _RECONNECT_S:
                return None
            if self.handshakes.nothing_listens:
                return self._lost("ended: nothing listens there any more", "gone")
            return self._lost("is out of reach: the connection to it broke off", for_good=False)
        began = self.facts.start_ticks
        if has_ended(self.pid) or (began is not None and start_ticks(self.pid) != began):
            return self._lost("ended", "gone")
        return self._detached()

    def _detached(self) -> Loss | None:
        """The loss if the process goes on without this agent, which takes its socket with it."""
        greeted = self.handshakes.succeeded
        if self.at_port or not greeted or os.path.exists(self.address.url.removeprefix("ipc://")):
            return None
        self._missing_since = min(self._missing_since, time.monotonic())
        there = agent_memory.facts(self.pid)
        still = there is not None and there.id == self.facts.id
        if still or time.monotonic() - self._missing_since < _LAST_REPLY_S:
            return None
        return self._lost("was detached (connect again once it is attached)")

    def close(self) -> None:
        self.unwatch()
        if self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close(linger=0)
        if self.socket is not None:
            self.socket.close(linger=0)
