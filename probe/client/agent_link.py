"""The connection to one agent: where it is asked (nowhere, if nobody knows), what is known of it, its socket's news.

Made by probe.client.client.  A process of this machine is also seen in /proc, one of another host only through what it
says. Invariant: pid is that of a process here only where `here` holds; nothing looks into /proc for any other.
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
from ..host.processes import has_ended, is_stopped, start_ticks
from ..keys import Key
from ..protocol import CONTROL, MAX_REPLY_BYTES
from .endpoints import Address

Header = dict[str, Any]

_REFUSALS = 2  # pieces of bad news before a greeting; the first may be a target that is just starting
_REFUSALS_AT_PORT = 3  # failed handshakes: of one that is just ending there is one
_CLOSED = 5  # connections that nothing took, a quarter of a second long
_LOST_S = 1.0  # without its connection, before an agent of another host counts as lost; libzmq tries every 50 ms
_LAST_S = 0.5  # an agent's last reply may be on its way when it is gone
_HEARTBEAT_MS = 2000  # libzmq's own thread answers, whatever holds the GIL there; three are lost before it says so
_NEWS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_CLOSED
)


class Loss(NamedTuple):
    """Why nothing comes of an agent, in words, and as an error of what it was asked; for_good: or it may come back."""

    why: str
    error: ProbeError
    for_good: bool = True


class AgentLink:
    """facts: what it said last; pid: 0 until it is known; silent: why it does not answer, once that is known;
    gone: and never will, nor can its memory be read: ended, not ours, of another version; ended: its process has."""

    def __init__(self, context: zmq.Context[Any], address: Address, key: Key | None = None) -> None:
        self.address = address
        self._numbering: Header = {}
        self._numbered_over: object = None
        self.facts = address.facts
        self.pid, self.here = address.pid or int(address.facts.get("pid") or 0), bool(address.pid)
        self.silent, self.gone, self.ended = "", False, False
        self.greeted, self._is_full = False, False
        self._refusals, self._closed, self._lost_at = 0, 0, math.inf
        self._missed_at = math.inf
        self.role = CONTROL
        self._key = key if address.url.startswith("tcp://") else None
        self._context = context
        self.socket: Any = None
        self.monitor: Any = None  # of the socket, at a port; else of a second one, as long as it is watched
        self._scout: Any = None
        if address.url:
            self._connect(context)

    @property
    def at_port(self) -> bool:
        """Whether it is asked at a port, perhaps on another host: then its connection is all that is seen of it."""
        return self._key is not None

    def _connect(self, context: zmq.Context[Any]) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)  # credit bounds what comes
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_REPLY_BYTES)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        if self._key is not None:
            self._encrypt(self._key)
            self.monitor = self.socket.get_monitor_socket(_NEWS)
        try:
            self.socket.connect(self.address.url)
        except zmq.ZMQError as error:  # a path that is too long for a socket
            self.close()
            raise SilentError(f"{self.name} cannot be reached at {self.address.url}: {error.strerror}.") from error

    def watch(self) -> None:
        """From now on refusal() has news.  A monitor costs too many descriptors to have one for each who answers."""
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
    def facts(self) -> Header:
        return self._facts

    @facts.setter
    def facts(self, said: Header) -> None:
        self._said = said
        still = _numbers(said) == self._numbered_over
        self._facts = {**said, **self._numbering} if still else said

    def number_steps(self, base: int, source: str) -> None:
        """Its steps count so for this connection, until it numbers them otherwise itself: a key for reading tells an
        agent nothing."""
        self._numbered_over = _numbers(self._said)
        self._numbering = {"step_base": base, "step_source": source}
        self.facts = self._said

    def _encrypt(self, key: Key) -> None:
        self.socket.setsockopt(zmq.IPV6, "[" in self.address.url)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, key.server_public.encode())
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, key.client.public.encode())
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, key.client.secret.encode())
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)

    @property
    def rank(self) -> int:
        return int(self.facts.get("rank") or 0)

    @property
    def name(self) -> str:
        """`Rank 3 (pid 4242)`; with its host where that is another one; the address as long as nothing is known."""
        return f"Rank {self.number}" if self.pid or "rank" in self.facts else self.address.shown or self.address.url

    @property
    def number(self) -> str:
        """`3 (pid 4242)`, for lists of ranks."""
        if not self.pid:
            return str(self.rank)
        return f"{self.rank} ({'' if self.here else f'{self.host}, '}pid {self.pid})"

    @property
    def host(self) -> str:
        """Where its process is, "" for this machine."""
        return "" if self.here else str(self.facts.get("host") or "another host")

    @property
    def readable(self) -> bool:
        """Whether its memory may be read."""
        return self.here and not self.gone

    def welcome(self, header: Header) -> None:
        """What it says of itself at first; only now is it known whether its process is one of this machine."""
        facts = self.facts = header["facts"]
        self.role = str(header.get("role", CONTROL))
        if not self.address.pid:
            found = agent_memory.here(facts)
            self.pid, self.here = (int(facts["pid"]), False) if found is None else (found, True)

    def silence(self) -> SilentError:
        """The error of a request that had no answer."""
        return SilentError(f"{self.name} {self.why_silent()}.")

    def why_silent(self) -> str:
        """What it does instead of answering, as far as that can be seen from outside."""
        if self.silent:
            return self.silent
        if self.stopped:
            return f"is stopped (to let it go on: kill -CONT {self.pid})"
        return "does not answer"

    @property
    def stopped(self) -> bool:
        return self.here and is_stopped(self.pid)

    def refusal(self) -> Loss | None:
        """Take the socket's news; why, if the agent keeps closing the door before any greeting, and as an error."""
        while self.monitor.get(zmq.EVENTS) & zmq.POLLIN:
            event = int.from_bytes(self.monitor.recv_multipart()[0][:2], sys.byteorder)  # libzmq's own form of it
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.greeted, self._lost_at = True, math.inf
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._is_full = self._key is None
                self._refusals = _REFUSALS_AT_PORT  # the last word: libzmq does not try again
            elif event == zmq.EVENT_CLOSED:
                self._closed += self._key is not None
            elif not self.greeted:
                self._refusals += self._key is None or event != zmq.EVENT_DISCONNECTED
            elif event == zmq.EVENT_DISCONNECTED and self._lost_at == math.inf:
                self._lost_at, self._closed = time.monotonic(), 0
        if self.greeted:
            return None
        if self._closed >= _CLOSED:
            return self._lost(f"has ended: nothing listens at {self.address.url}", "gone")
        if self._refusals < (_REFUSALS if self._key is None else _REFUSALS_AT_PORT):
            return None
        if self._is_full:
            return self._lost("has as many readers as it takes")
        if self._key is None:
            return self._lost("refuses this user: it belongs to another one")
        theirs = self.facts.get("server_key")
        whose = f" (theirs begins with {theirs[:6]}, this one with {self._key.server_public[:6]})" if theirs else ""
        return self._lost(f"does not take the key {self._key.path}{whose}", "key-refused")

    def _lost(self, why: str, code: str = "", for_good: bool = True) -> Loss:
        if code != "key-refused":
            return Loss(why, SilentError(f"{self.name} {why}.", code=code), for_good)
        hint = "Give the one it was attached with, or the part shared of that: --key FILE"
        return Loss(why, EndpointError(f"{self.name} {why}.", hint, code))

    def disclaim(self, why: str) -> None:
        """Who answers there is another than was looked for."""
        self.facts, self.pid, self.here = self.address.facts, int(self.address.facts.get("pid") or 0), False
        self.silent, self.gone, self.ended = why, True, True

    def loss(self) -> Loss | None:
        """Why it will answer nothing that it has been asked, and as an error: the very process is no more (a zombie is
        not), or the connection to another host is lost."""
        if self.here:
            began = self.facts.get("start_ticks")
            ended = has_ended(self.pid) or (began is not None and start_ticks(self.pid) != began)
            return self._lost("ended", "gone") if ended else self._detached()
        if time.monotonic() - self._lost_at < _LOST_S:
            return None
        if self._closed >= _CLOSED:
            return self._lost("ended: nothing listens there any more", "gone")
        return self._lost("is out of reach: the connection to it broke off", for_good=False)

    def _detached(self) -> Loss | None:
        """Whether the process goes on without the agent that was spoken to; that takes its socket with it."""
        if self.at_port or not self.greeted or os.path.exists(self.address.url.removeprefix("ipc://")):
            return None
        self._missed_at = min(self._missed_at, time.monotonic())
        still = (agent_memory.facts(self.pid) or {}).get("id") == self.facts.get("id")
        if still or time.monotonic() - self._missed_at < _LAST_S:
            return None
        return self._lost("was detached (connect again once it is attached)")

    def close(self) -> None:
        self.unwatch()
        if self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close(linger=0)
        if self.socket is not None:
            self.socket.close(linger=0)


def _numbers(said: Header) -> tuple[Any, ...]:
    """Whose steps they are, and where that one has their numbers from."""
    return said.get("id"), said.get("step_source")
