"""Requests to many agents at once: one DEALER socket an agent, one poller, replies sorted to their requests.

Called by probe.fetch (rows) and probe.evaluation; knows kinds of messages only as far as credit goes.
Invariant: every request ends, in an answer, an error or a statement that the agent is silent, refuses us
or is gone; nothing here waits longer than its deadline.  No pyarrow, no duckdb.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from . import protocol as wire
from .errors import CODES, AgentError, Interrupted, ProbeError, SilentError
from .processes import is_stopped

Header = dict[str, Any]
OnReply = Callable[["Call", Header, Sequence[Any]], None]

_LOOK_SECONDS = 0.1  # how often a wait looks for Ctrl-C and for targets that died
_REFUSALS = 2  # connections lost before a greeting; the first may be a target that is just starting


def why_silent(pid: int) -> str:
    """What it does instead of answering, as far as that can be seen from outside."""
    return f"is stopped (to let it go on: kill -CONT {pid})" if is_stopped(pid) else "does not answer"


class Link:
    """The connection to one agent.  pid and start_ticks: as this machine sees the process."""

    def __init__(self, context: zmq.Context[Any], pid: int, facts: Header, address: str) -> None:
        self.pid = pid
        self.facts = facts
        self.rank = int(facts.get("rank") or 0)
        self.silent = ""  # why it does not answer, once that is known
        self.gone = False  # and never will, nor can its memory be read: ended, not ours, of another version
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)  # credit bounds what comes
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        self.greeted = False
        self._refusals = 0
        try:
            self.socket.connect(address)
        except zmq.ZMQError as error:  # a path that is too long for a socket
            self.close()
            raise SilentError(f"pid {pid} cannot be reached at {address}: {error.strerror}.") from error

    def refused(self) -> bool:
        """Take the monitor's news; whether the agent keeps closing the door before any greeting."""
        while self.monitor.get(zmq.EVENTS) & zmq.POLLIN:
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.greeted = True
            elif not self.greeted:
                self._refusals += 1
        return not self.greeted and self._refusals >= _REFUSALS

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


class Call:
    """One request to one agent: `answer` is its terminal reply, `error` what went wrong instead."""

    def __init__(self, link: Link, id: bytes, kind: str) -> None:
        self.link, self.id, self.kind = link, id, kind
        self.answer: Header | None = None
        self.error: ProbeError | None = None
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

    def __init__(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 8192)
        self._poller = zmq.Poller()
        self._ids = count(1)
        self._calls: dict[tuple[Any, bytes], Call] = {}
        self.links: list[Link] = []
        self._of_monitor: dict[Any, Link] = {}
        self.interrupted = False

    def connect(self, pid: int, facts: Header, address: str) -> Link:
        link = Link(self._context, pid, facts, address)
        self.links.append(link)
        self._of_monitor[link.monitor] = link
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)
        return link

    def close(self) -> None:
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

    def send(self, link: Link, kind: str, *payload: bytes, **fields: Any) -> Call:
        """Ask; the reply is taken by wait()."""
        call = Call(link, str(next(self._ids)).encode(), kind)
        if wire.REPLIES[kind]:
            self._calls[link.socket, call.id] = call
        if link.silent:
            call.error = SilentError(f"Rank {link.rank} (pid {link.pid}) {link.silent}.")
        else:
            link.socket.send_multipart([call.id, wire.encode(kind, **fields), *payload])
        return call

    def cancel(self, calls: Iterable[Call]) -> None:
        """Ask the agents to end these requests; each still ends by a reply."""
        for call in calls:
            if not call.over:
                self.send(call.link, wire.CANCEL, of=call.id.decode())

    def forget(self, calls: Iterable[Call]) -> None:
        """Late replies to these are dropped."""
        for call in calls:
            self._calls.pop((call.link.socket, call.id), None)

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
        looked = time.monotonic()
        while not (all(call.over for call in calls) or (until is not None and until())):
            if self.interrupted:
                self.interrupted = False
                raise Interrupted("Interrupted.")
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                break
            wait = _LOOK_SECONDS if deadline is None else min(_LOOK_SECONDS, deadline - now)
            for socket, _ in self._poller.poll(max(1, int(wait * 1000))):
                self._take(socket, on_reply)
            if time.monotonic() - looked >= _LOOK_SECONDS:
                looked = time.monotonic()
                self._bury(calls)
        return [call for call in calls if not call.over]

    def ask(self, kind: str, deadline: float, links: Sequence[Link] | None = None, **fields: Any) -> list[Call]:
        """The same request to every agent (or these); all replies, or silence marked as an error."""
        calls = [self.send(link, kind, **fields) for link in (self.links if links is None else links)]
        for call in self.wait(calls, deadline):
            call.error = SilentError(f"Rank {call.link.rank} (pid {call.link.pid}) {why_silent(call.link.pid)}.")
        self.forget(calls)
        return calls

    def _take(self, socket: Any, on_reply: OnReply | None) -> None:
        """All that has come on one socket."""
        if socket in self._of_monitor:
            self._hear(self._of_monitor[socket])
            return
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            call = self._calls.get((socket, frames[0].bytes)) if len(frames) >= 2 else None
            if call is not None and not call.over:
                self._sort(call, frames, on_reply)

    def _hear(self, link: Link) -> None:
        if link.refused():
            self._end(link, "refuses this user: it belongs to another one", "")

    def _sort(self, call: Call, frames: list[Any], on_reply: OnReply | None) -> None:
        try:
            header = wire.decode(frames[1].bytes)
        except wire.WireError as error:
            call.error = AgentError(f"Rank {call.link.rank} sent a message that is none: {error}.", code="protocol")
            return
        kind = header["kind"]
        if kind == wire.ERROR:
            call.error = agent_error(call.link, header)
        elif kind not in wire.REPLIES[call.kind]:
            call.error = AgentError(f"Rank {call.link.rank} answered {call.kind} by {kind}.", code="protocol")
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
            header = wire.encode(wire.NEXT, credit=wire.CREDIT // 2)
            call.link.socket.send_multipart([call.id, header])

    def _bury(self, calls: Sequence[Call]) -> None:
        for link in {call.link for call in calls if not call.over}:
            if not alive(link):
                self._end(link, "ended", "gone")

    def _end(self, link: Link, why: str, code: str) -> None:
        link.silent, link.gone = why, True
        for call in self._calls.values():
            if call.link is link and not call.over:
                call.error = SilentError(f"Rank {link.rank} (pid {link.pid}) {why}.", code=code)


def alive(link: Link) -> bool:
    """Whether the very process still exists (a zombie does not)."""
    try:
        with open(f"/proc/{link.pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    same = "start_ticks" not in link.facts or int(fields[19]) == int(link.facts["start_ticks"])
    return same and fields[0] not in (b"Z", b"X")


def nobody(calls: Sequence[Call]) -> ProbeError:
    """What to raise when no rank answered: the cause, if there is but one rank."""
    first = calls[0].error if calls else None
    if len(calls) == 1 and first is not None:
        return first
    return SilentError(f"None of {len(calls)} ranks answered.", str(first or ""))


def agent_error(link: Link, header: Header) -> ProbeError:
    """What an agent's error says, as the exception of its code."""
    code = str(header.get("code", "agent"))
    kind = CODES[code][0] if code in CODES else AgentError
    message = f"Rank {link.rank}: {header.get('message', '')}"
    hint = f"Run: probe attach {link.pid}" if code == "protocol" else ""
    return kind(message, hint, code if code in CODES else "agent")
