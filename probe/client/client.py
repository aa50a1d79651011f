"""Requests to many agents at once: one DEALER socket per agent, one poller, replies matched to their requests.

Called by probe.snapshot.wire_source (rows) and probe.evals.evaluation; of the kinds of messages it knows only which
take credit.  Invariant: every request ends in an answer or an error, which says if the agent is silent, refuses us or
is gone; nothing waits past its deadline.  No pyarrow, no duckdb.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import zmq

from .. import protocol as wire
from ..errors import CODES, AgentError, EndpointError, Interrupted, ProbeError, SilentError
from ..host.file_limits import WATCHED
from ..keys import VARIABLE, Key, given, read
from . import reply_schema
from .agent_link import AgentLink, Header, Loss
from .clock_offsets import ClockOffsets
from .endpoints import Address
from .reply_schema import Expected

__all__ = ["AgentLink", "Call", "Client", "Header", "OnReply", "agent_error", "nobody"]

OnReply = Callable[["Call", Header, Sequence[Any]], None]

_LOOK_S = 0.1  # how often a wait checks for Ctrl-C and for targets that died
_MESSAGES_AT_ONCE = 256  # of one agent, before the others and the deadline get their turn


class Call:
    """One request to one agent.  answer: its terminal reply; error: what went wrong instead."""

    def __init__(self, link: AgentLink, id: bytes, kind: str) -> None:
        self.link, self.id, self.kind = link, id, kind
        self.sent_ns = time.time_ns()
        self.answer: Header | None = None
        self.error: ProbeError | None = None
        self.expected: Expected | None = None  # of a stream
        self.received = 0

    @property
    def over(self) -> bool:
        return self.answer is not None or self.error is not None

    def result(self) -> Header:
        """The terminal reply.  Raises the error if there is one instead."""
        if self.answer is None:
            raise self.error or AssertionError("the request is not over")
        return self.answer


class Client:
    """Sockets to all agents of an endpoint.  One thread at a time.

    interrupted: set by any thread or signal handler, it ends the wait that is under way with Interrupted.
    """

    def __init__(self, key_file: str | None = None) -> None:
        self._key_file = key_file
        self._key: Key | None = None
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 8192)
        # zmq's own poller polls each socket each time: with 512 of them that took most of a query's time
        self._epoll = select.epoll()
        self._by_fd: dict[int, AgentLink] = {}
        self._unread: set[AgentLink] = set()  # may have messages without their descriptors being readable
        self._ids = count(1)
        self._calls: dict[tuple[AgentLink, bytes], Call] = {}
        self.links: list[AgentLink] = []
        self._watched: dict[int, AgentLink] = {}  # by the monitor's descriptor
        self.clocks = ClockOffsets()
        self.interrupted = False

    def connect(self, address: Address) -> AgentLink:
        link = AgentLink(self._context, address, self._key_for(address))
        self.links.append(link)
        if link.socket is not None:
            fd = link.socket.get(zmq.FD)
            self._by_fd[fd] = link
            self._epoll.register(fd, select.EPOLLIN)
            if link.monitor is not None:
                self._listen(link)
        return link

    def _key_for(self, address: Address) -> Key | None:
        """Reads the key file when a port needs it: agents on this machine can be asked whatever the file is like."""
        if not address.url.startswith("tcp://"):
            return None
        if self._key is None:
            path = given(self._key_file)
            if path is None:
                hint = f"Give the file it was attached with, or a part shared of it: --key FILE, or {VARIABLE}=FILE"
                raise EndpointError(f"{address.url} asks for a key.", hint, "no-key")
            self._key = read(path)
        return self._key

    def drop(self, link: AgentLink) -> None:
        """Close the connection to this agent."""
        self.links.remove(link)
        self._unread.discard(link)
        for known in (self._by_fd, self._watched):
            for fd in [fd for fd, other in known.items() if other is link]:
                self._epoll.unregister(fd)
                del known[fd]
        link.close()

    def close(self) -> None:
        self._epoll.close()
        for link in self.links:
            link.close()
        self.links.clear()
        self._context.term()

    def forgive(self) -> None:
        """Ask ranks that did not answer again from now on, except those that never will."""
        for link in self.links:
            link.silent = link.silent if link.gone else ""

    def send(self, link: AgentLink, kind: str, *payload: bytes, **fields: Any) -> Call:
        """Send a request; wait() takes the reply."""
        call = Call(link, str(next(self._ids)).encode(), kind)
        call.expected = Expected(fields, link.facts) if kind in (wire.SCAN, wire.LOG) else None
        if wire.REPLIES[kind]:
            self._calls[link, call.id] = call
        if link.silent:
            call.error = link.silence()
        else:
            self._send(link, [call.id, wire.encode(kind, **fields), *payload])
        return call

    def _send(self, link: AgentLink, frames: list[bytes]) -> None:
        """Without blocking, as zmq would forever if the agent has refused us; _look() finds out why no reply comes."""
        with suppress(zmq.Again):
            link.socket.send_multipart(frames, zmq.NOBLOCK)
        self._unread.add(link)  # sending consumes zmq's notices of what has come

    def cancel(self, calls: Iterable[Call]) -> None:
        """Ask the agents to end these requests; each still ends with a reply."""
        for call in calls:
            if not call.over:
                self.send(call.link, wire.CANCEL, of=call.id.decode())

    def forget(self, calls: Iterable[Call]) -> None:
        """Drop late replies to these requests."""
        for call in calls:
            self._calls.pop((call.link, call.id), None)

    def wait(
        self, calls: Sequence[Call], deadline: float | None, on_reply: OnReply | None = None,
        until: Callable[[], bool] | None = None,
    ) -> list[Call]:  # fmt: skip
        """Take replies until all calls are over, `until` holds, or the deadline (time.monotonic) has passed.

        Returns the calls that are not over.  on_reply gets the replies before a terminal one.  Raises Interrupted.
        """
        looked, over = time.monotonic(), 0
        while True:
            while over < len(calls) and calls[over].over:
                over += 1
            if over == len(calls) or (until is not None and until()):
                break
            if self.interrupted:
                self.interrupted = False
                raise Interrupted("Interrupted.")
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                break
            wait = _LOOK_S if deadline is None else min(_LOOK_S, deadline - now)
            for link in self._ready(wait):
                self._take(link, on_reply)
            if time.monotonic() - looked >= _LOOK_S:
                looked = time.monotonic()
                self._look(calls)
        return [call for call in calls if not call.over]

    def ask(self, kind: str, deadline: float, links: Sequence[AgentLink] | None = None, **fields: Any) -> list[Call]:
        """Send the same request to every agent (or these); each call returned has an answer or an error."""
        calls = [self.send(link, kind, **fields) for link in (self.links if links is None else links)]
        for call in self.wait(calls, deadline):
            call.error = call.link.silence()
        self.forget(calls)
        return calls

    def _ready(self, wait_s: float) -> set[AgentLink]:
        """The links on which something may have come."""
        found, self._unread = self._unread, set()
        for fd, _ in self._epoll.poll(0 if found else wait_s):
            if fd in self._by_fd:
                found.add(self._by_fd[fd])
            else:
                self._hear(fd, self._watched[fd])
        return found

    def _take(self, link: AgentLink, on_reply: OnReply | None) -> None:
        """Take the messages of one agent."""
        for _ in range(_MESSAGES_AT_ONCE):
            try:
                frames = link.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            link.handshakes.succeeded = True
            call = self._calls.get((link, frames[0].bytes)) if len(frames) >= 2 else None
            if call is not None and not call.over:
                self._sort(call, frames, on_reply)
        self._unread.add(link)

    def _hear(self, fd: int, link: AgentLink) -> None:
        """Read a monitor: of an agent that has not answered, or that is asked at a port."""
        if (refusal := link.refusal()) is not None:
            self._end(link, refusal)
        if not link.at_port and (link.handshakes.succeeded or link.gone):
            self._unwatch(fd)

    def _listen(self, link: AgentLink) -> None:
        fd = link.monitor.get(zmq.FD)
        self._watched[fd] = link
        self._epoll.register(fd, select.EPOLLIN)
        self._hear(fd, link)  # its descriptor is readable only for events after everything was read

    def _unwatch(self, fd: int) -> None:
        self._epoll.unregister(fd)
        self._watched.pop(fd).unwatch()

    def _sort(self, call: Call, frames: list[Any], on_reply: OnReply | None) -> None:
        try:
            header = wire.decode(frames[1].bytes)
            kind = header["kind"]
            reply_schema.check(header, len(frames) - 2)
            if call.expected is not None and kind == wire.END:
                call.expected.end(header["rows"])
            elif call.expected is not None and kind in wire.REPLIES[call.kind]:
                call.expected.take(header, frames[2:])
            if "facts" in header:
                header["facts"] = self.clocks.corrected(header["facts"], call.sent_ns, time.time_ns())
        except wire.WireError as error:
            call.error = AgentError(f"{call.link.name} sent a malformed message: {error}.", code="protocol")
            self.cancel([call])
            return
        if kind == wire.ERROR:
            call.error = agent_error(call.link, header)
        elif kind not in wire.REPLIES[call.kind]:
            call.error = AgentError(f"{call.link.name} answered {call.kind} with {kind[:40]!r}.", code="protocol")
        elif kind in wire.TERMINAL:
            call.answer = header
        else:
            call.received, refill = call.received + 1, wire.CREDIT // 2
            if call.kind in (wire.SCAN, wire.LOG) and call.received % refill == 0:
                self._send(call.link, [call.id, wire.encode(wire.NEXT, credit=refill)])
            if on_reply is not None:
                on_reply(call, header, frames[2:])

    def _look(self, calls: Sequence[Call]) -> None:
        """Find out whether agents that we wait for have ended or refuse us."""
        for fd, link in list(self._watched.items()):
            if link.handshakes.succeeded and not link.at_port:
                self._unwatch(fd)
        for link in {call.link for call in calls if not call.over}:
            if (loss := link.loss()) is not None:
                self._end(link, loss)
            elif link.unheard and len(self._watched) < WATCHED:
                link.watch()
                self._listen(link)

    def _end(self, link: AgentLink, loss: Loss) -> None:
        link.silent, link.gone, link.ended = loss.why, loss.for_good, loss.error.code == "gone"
        for call in self._calls.values():
            if call.link is link and not call.over:
                call.error = loss.error


def nobody(errors: Sequence[ProbeError | None]) -> ProbeError:
    """What to raise when no rank answered: the error of the only one, else the first as a hint."""
    first = errors[0] if errors else None
    alone = first if len(errors) == 1 else None
    return alone or SilentError(f"None of {len(errors)} ranks answered.", str(first or ""))


def agent_error(link: AgentLink, header: Header) -> ProbeError:
    """The exception that stands for an agent's error."""
    code = str(header.get("code", "agent"))
    kind = CODES[code][0] if code in CODES else AgentError
    message = f"Rank {link.rank}: {header.get('message', '')}"
    hint = f"Run: probe attach {link.pid}" if code == "protocol" and link.here else ""
    return kind(message, hint, code if code in CODES else "agent")
