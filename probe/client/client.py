"""Requests to many agents at once: one DEALER socket an agent, one poller, replies sorted to their requests.

Called by probe.snapshot.wire_source (rows) and probe.evals.evaluation; knows kinds of messages only as far as credit
goes. Invariant: every request ends, in an answer, an error or a statement that the agent is silent, refuses us or is
gone; nothing here waits longer than its deadline.  No pyarrow, no duckdb.
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
from .agent_link import AgentLink as AgentLink
from .agent_link import Header as Header
from .agent_link import Loss
from .clock_offsets import ClockOffsets
from .endpoints import Address
from .stream_checks import Expected

OnReply = Callable[["Call", Header, Sequence[Any]], None]

_LOOK_SECONDS = 0.1  # how often a wait looks for Ctrl-C and for targets that died
_AT_ONCE = 256  # messages of one agent, before the others and the deadline get their turn


class Call:
    """One request to one agent: `answer` is its terminal reply, `error` what went wrong instead."""

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
        """The terminal reply; raises the error there was instead."""
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


class Client:
    """Sockets to all agents of an endpoint.  One thread at a time; interrupt() also from a signal handler."""

    def __init__(self, key_file: str | None = None) -> None:
        self._key_file = key_file
        self._key: Key | None = None
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 8192)
        # zmq's own poller asks each socket each time: with 512 of them that took most of the time of a query
        self._epoll = select.epoll()
        self._by_fd: dict[int, AgentLink] = {}
        self._unread: set[AgentLink] = set()  # sockets that may have something of which the descriptor tells nothing
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
        """Read once it is needed: a key file that is no good keeps nobody from the agents of this machine."""
        if not address.url.startswith("tcp://"):
            return None
        if self._key is None:
            path = given(self._key_file)
            if path is None:
                hint = (
                    f"Give the file that it was attached with, or a part shared of it: --key FILE, or {VARIABLE}=FILE"
                )
                raise EndpointError(f"{address.url} asks for a key.", hint, "no-key")
            self._key = read(path)
        return self._key

    def drop(self, link: AgentLink) -> None:
        """It is asked nothing any more."""
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
        """Ranks that did not answer are asked again, but for those that never will."""
        for link in self.links:
            link.silent = link.silent if link.gone else ""

    def interrupt(self) -> None:
        """Whatever waits stops waiting, with Interrupted."""
        self.interrupted = True

    def send(self, link: AgentLink, kind: str, *payload: bytes, **fields: Any) -> Call:
        """Ask; the reply is taken by wait()."""
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
        """Without waiting: to one who has refused us zmq would wait for ever.  Why nothing comes is looked into."""
        with suppress(zmq.Again):
            link.socket.send_multipart(frames, zmq.NOBLOCK)
        self._unread.add(link)  # sending takes zmq's notices of what has come

    def cancel(self, calls: Iterable[Call]) -> None:
        """Ask the agents to end these requests; each still ends by a reply."""
        for call in calls:
            if not call.over:
                self.send(call.link, wire.CANCEL, of=call.id.decode())

    def forget(self, calls: Iterable[Call]) -> None:
        """Late replies to these are dropped."""
        for call in calls:
            self._calls.pop((call.link, call.id), None)

    def wait(
        self,
        calls: Sequence[Call],
        deadline: float | None,
        on_reply: OnReply | None = None,
        until: Callable[[], bool] | None = None,
    ) -> list[Call]:
        """Take replies until all calls are over, `until` holds, or the deadline (time.monotonic) is past.

        Returns the calls that are not over.  on_reply gets what comes before a terminal reply.
        Raises Interrupted after interrupt().
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
            wait = _LOOK_SECONDS if deadline is None else min(_LOOK_SECONDS, deadline - now)
            for link in self._ready(wait):
                self._take(link, on_reply)
            if time.monotonic() - looked >= _LOOK_SECONDS:
                looked = time.monotonic()
                self._look(calls)
        return [call for call in calls if not call.over]

    def ask(self, kind: str, deadline: float, links: Sequence[AgentLink] | None = None, **fields: Any) -> list[Call]:
        """The same request to every agent (or these); all replies, or silence marked as an error."""
        calls = [self.send(link, kind, **fields) for link in (self.links if links is None else links)]
        for call in self.wait(calls, deadline):
            call.error = call.link.silence()
        self.forget(calls)
        return calls

    def _ready(self, wait_s: float) -> set[AgentLink]:
        """The links that something may have come on."""
        found, self._unread = self._unread, set()
        for fd, _ in self._epoll.poll(0 if found else wait_s):
            if fd in self._by_fd:
                found.add(self._by_fd[fd])
            else:
                self._hear(fd, self._watched[fd])
        return found

    def _take(self, link: AgentLink, on_reply: OnReply | None) -> None:
        """What has come of one agent."""
        for _ in range(_AT_ONCE):
            try:
                frames = link.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            link.greeted = True
            call = self._calls.get((link, frames[0].bytes)) if len(frames) >= 2 else None
            if call is not None and not call.over:
                self._sort(call, frames, on_reply)
        self._unread.add(link)

    def _hear(self, fd: int, link: AgentLink) -> None:
        """News of an agent that has not answered, or is asked at a port."""
        if (refusal := link.refusal()) is not None:
            self._end(link, refusal)
        if not link.at_port and (link.greeted or link.gone):
            self._unwatch(fd)

    def _watch(self, link: AgentLink) -> None:
        link.watch()
        self._listen(link)

    def _listen(self, link: AgentLink) -> None:
        fd = link.monitor.get(zmq.FD)
        self._watched[fd] = link
        self._epoll.register(fd, select.EPOLLIN)
        self._hear(fd, link)  # a descriptor tells of what comes after everything has been read

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
            call.error = AgentError(f"{call.link.name} sent a message that is none: {error}.", code="protocol")
            self.cancel([call])
            return
        if kind == wire.ERROR:
            call.error = agent_error(call.link, header)
        elif kind not in wire.REPLIES[call.kind]:
            call.error = AgentError(f"{call.link.name} answered {call.kind} by {kind[:40]!r}.", code="protocol")
        elif kind in wire.TERMINAL:
            call.answer = header
        else:
            self._credit(call)
            if on_reply is not None:
                on_reply(call, header, frames[2:])

    def _credit(self, call: Call) -> None:
        """Half of what may travel has come: ask for as much again."""
        call.received += 1
        if call.kind in (wire.SCAN, wire.LOG) and call.received % (wire.CREDIT // 2) == 0:
            self._send(call.link, [call.id, wire.encode(wire.NEXT, credit=wire.CREDIT // 2)])

    def _look(self, calls: Sequence[Call]) -> None:
        """At those who let us wait: have they ended, or do they refuse us?"""
        for fd in [fd for fd, link in self._watched.items() if link.greeted and not link.at_port]:
            self._unwatch(fd)
        for link in {call.link for call in calls if not call.over}:
            if (loss := link.loss()) is not None:
                self._end(link, loss)
            elif link.socket is not None and not link.greeted and link.monitor is None and len(self._watched) < WATCHED:
                self._watch(link)

    def _end(self, link: AgentLink, loss: Loss) -> None:
        link.silent, link.gone, link.ended = loss.why, loss.for_good, loss.error.code == "gone"
        for call in self._calls.values():
            if call.link is link and not call.over:
                call.error = loss.error


def nobody(calls: Sequence[Call]) -> ProbeError:
    """What to raise when no rank answered: the cause, if there is but one rank."""
    first = calls[0].error if calls else None
    if len(calls) == 1 and first is not None:
        return first
    return SilentError(f"None of {len(calls)} ranks answered.", str(first or ""))


def agent_error(link: AgentLink, header: Header) -> ProbeError:
    """What an agent's error says, as the exception of its code."""
    code = str(header.get("code", "agent"))
    kind = CODES[code][0] if code in CODES else AgentError
    message = f"Rank {link.rank}: {header.get('message', '')}"
    hint = f"Run: probe attach {link.pid}" if code == "protocol" and link.here else ""
    return kind(message, hint, code if code in CODES else "agent")
