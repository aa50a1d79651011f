"""Requests to many agents at once: a socket per server, or per agent without one, and one poller.

Called by probe.snapshot.wire_source (rows) and probe.evals.attempt; of the kinds of messages it knows only which
take credit.  Invariant: every request ends in an answer or an error, which says if the agent is silent, refuses us or
is gone; nothing waits past its deadline.  No pyarrow, no duckdb.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from .. import protocol as wire
from ..errors import AgentError, Interrupted, SilentError
from ..keys import Key, for_port
from . import reply_schema
from .agent_link import AgentLink, Header, Loss, agent_error
from .agent_socket import AgentSocket
from .call import Call, OnReply
from .clock_offsets import ClockOffsets
from .endpoints import Address
from .reply_schema import Expected

if TYPE_CHECKING:
    from .server_socket import ServerSocket

__all__ = ["AgentLink", "Call", "Client", "Header", "OnReply"]

_ON_CREDIT = (wire.SCAN, wire.LOG, wire.QUERY, wire.EVENTS, wire.PART)
_NAP_S = 0.05
_LOOK_S = 0.1  # how often a wait checks for Ctrl-C and for targets that died


class Client:
    """Sockets to all agents of an endpoint.  One thread at a time.

    interrupted: set by any thread or signal handler, it ends the wait that is under way with Interrupted.
    """

    def __init__(self, key_file: str | None = None, role: str = wire.CONTROL) -> None:
        self._key_file, self.role = key_file, role
        self._key: Key | None = None
        self._context: Any = None
        self._epoll = select.epoll()
        self._carriers: dict[int, AgentSocket | ServerSocket] = {}  # by descriptor
        self._servers: dict[str, ServerSocket] = {}  # by url
        self._ids = count(1)
        self._calls: dict[bytes, Call] = {}
        self.links: list[AgentLink] = []
        self.clocks, self.interrupted = ClockOffsets(), False

    def connect(self, address: Address, server: ServerSocket | None = None) -> AgentLink:
        """A link to the agent with this address: through a server, or to its own socket."""
        self.links.append(self.link(address, server))
        return self.links[-1]

    def link(self, address: Address, server: ServerSocket | None = None) -> AgentLink:
        """Likewise, but not one of `links`; with a server and without facts, to the server itself."""
        if server is not None:
            from .server_socket import Route

            return AgentLink(address, Route(server, address.facts.id or ""))
        if not address.url:
            return AgentLink(address, None)
        socket = AgentSocket(address.url.removeprefix("ipc://"))
        self._add(socket)
        return AgentLink(address, socket)

    def server(self, url: str) -> ServerSocket:
        """The connection to the server there.  Raises EndpointError, UsageError for a port without a good key."""
        if url not in self._servers:
            import zmq

            from .server_socket import ServerSocket

            key = self._key_for(url)
            self._context = self._context or zmq.Context()
            try:
                self._servers[url] = ServerSocket(self._context, url, key)
            except BaseException:  # Ctrl-C, and the frames of the error keep a socket, whose end close() would wait for
                self._context = None
                raise
            self._add(self._servers[url])
        return self._servers[url]

    def _key_for(self, url: str) -> Key | None:
        """Reads the key file when a port needs it: agents on this machine can be asked whatever the file is like."""
        if not url.startswith("tcp://"):
            return None
        if self._key is None:
            self._key = for_port(url, self._key_file)
        return self._key

    def _add(self, carrier: AgentSocket | ServerSocket) -> None:
        self._carriers[carrier.fileno()] = carrier
        self._epoll.register(carrier.fileno(), select.EPOLLIN)

    def _ignore(self, carrier: AgentSocket | ServerSocket) -> None:
        """One that has ended is ready for ever, whatever events are asked for."""
        with suppress(FileNotFoundError):  # it is ignored already
            self._epoll.unregister(carrier.fileno())

    def drop(self, link: AgentLink) -> None:
        """Close the connection to this agent."""
        self.links.remove(link)
        if isinstance(link.route, AgentSocket):
            self._ignore(link.route)
            del self._carriers[link.route.fileno()]
        link.close()

    def close(self) -> None:
        self._epoll.close()
        for carrier in self._carriers.values():
            carrier.close()
        self._carriers.clear()
        self._servers.clear()
        self.links.clear()
        if self._context is not None:
            self._context.destroy(linger=0)  # closes what Ctrl-C has kept from becoming a carrier

    def forgive(self) -> None:
        """Ask ranks that did not answer again from now on, except those that never will."""
        for link in self.links:
            if not link.gone:
                link.silent, link.refused = "", None

    def send(self, link: AgentLink, kind: str, *payload: bytes, **fields: Any) -> Call:
        """Send a request; wait() takes the reply."""
        call = Call(link, str(next(self._ids)).encode(), kind)
        call.expected = Expected(fields, link.facts) if kind in (wire.SCAN, wire.LOG, wire.EVENTS) else None
        if wire.REPLIES[kind]:
            self._calls[call.id] = call
        if link.silent and not (kind in wire.OF_SERVER and link.is_served):
            call.error = link.silence()
        else:
            self._send(link, [call.id, wire.encode(kind, **fields), *payload])
        return call

    def send_several(self, kind: str, requests: Mapping[AgentLink, Header]) -> None:
        """Send requests of a kind that has no reply: all agents of one server get theirs or none does, also if this
        process is killed meanwhile."""
        carried: dict[Any, list[AgentLink]] = {}
        for link in requests:
            carried.setdefault(link.route.carrier if link.route is not None else link, []).append(link)
        for carrier, links in carried.items():
            several = [(link.route, {"kind": kind, **requests[link]}) for link in links]
            carrier.send_several(several) if several[1:] else self.send(links[0], kind, **requests[links[0]])

    def _send(self, link: AgentLink, frames: list[bytes]) -> None:
        if link.route is not None:
            link.route.send(frames)
            carrier = link.route.carrier
            if carrier.has_unsent and not carrier.ended:
                self._epoll.modify(carrier.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def sleep(self, until: float) -> None:
        """Until this moment of time.monotonic().  Raises Interrupted."""
        while (left := until - time.monotonic()) > 0:
            if self.interrupted:
                self.interrupted = False
                raise Interrupted("Interrupted.")
            time.sleep(min(_NAP_S, left))

    def want(self, call: Call, messages: int) -> None:
        """Let so many more messages of this stream come; 0 says that it is still wanted."""
        self._send(call.link, [call.id, wire.encode(wire.NEXT, credit=messages)])

    def cancel(self, calls: Iterable[Call]) -> None:
        """Ask the agents to end these requests; each still ends with a reply."""
        for call in calls:
            if not call.over:
                self.send(call.link, wire.CANCEL, of=call.id.decode())

    def forget(self, calls: Iterable[Call]) -> None:
        """Drop late replies to these requests."""
        for call in calls:
            self._calls.pop(call.id, None)

    def wait(
        self, calls: Sequence[Call], deadline: float | None, on_reply: OnReply | None = None,
        until: Callable[[], bool] | None = None,
    ) -> list[Call]:  # fmt: skip
        """Take replies until all calls are over, `until` holds, or the deadline (time.monotonic) has passed.

        Returns the calls that are not over.  on_reply gets the replies before a terminal one.  Raises Interrupted.
        What has come by the deadline is taken, even if this thread stood still meanwhile.
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
            left = _LOOK_S if deadline is None else deadline - time.monotonic()
            wait = max(0.0, min(_LOOK_S, left))
            pending = [each for each in self._servers.values() if each.is_pending()]
            for fd, events in self._epoll.poll(0 if pending else wait):
                if self._carriers[fd] not in pending:
                    self._take(self._carriers[fd], events, on_reply)
            for server in pending:
                self._take(server, 0, on_reply)
            if left <= 0:
                break
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

    def _take(self, carrier: AgentSocket | ServerSocket, events: int, on_reply: OnReply | None) -> None:
        """Exchange what can be exchanged."""
        if events & select.EPOLLOUT:
            carrier.flush()
            if not carrier.has_unsent and not carrier.ended:
                self._epoll.modify(carrier.fileno(), select.EPOLLIN)
        for frames in carrier.receive():
            call = self._calls.get(frames[0]) if len(frames) >= 2 else None
            if call is not None and not call.over:
                self._sort(call, frames, on_reply)
        if carrier.ended:
            self._ignore(carrier)
            for link in self.links:
                if link.route is not None and link.route.carrier is carrier and (loss := link.loss()) is not None:
                    self._end(link, loss)

    def _sort(self, call: Call, frames: list[Any], on_reply: OnReply | None) -> None:
        try:
            header = wire.decode(frames[1])
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
            loss = call.link.refusal(header["code"], header["message"])
            call.error = agent_error(call.link, header) if loss is None else loss.error
            if loss is not None:
                self._end(call.link, loss)
        elif kind not in wire.REPLIES[call.kind]:
            call.error = AgentError(f"{call.link.name} answered {call.kind} with {kind[:40]!r}.", code="protocol")
        elif kind in wire.TERMINAL:
            call.answer, call.answered_at = header, time.monotonic()
        else:
            call.received, refill = call.received + 1, wire.CREDIT // 2
            if call.kind in _ON_CREDIT and call.received % refill == 0:
                self.want(call, refill)
            if on_reply is not None:
                on_reply(call, header, frames[2:])

    def _look(self, calls: Sequence[Call]) -> None:
        """Find out whether agents that we wait for have ended or refuse us, or their server has begun anew."""
        for server in self._servers.values():
            server.look()
        waiting = [call for call in calls if not call.over]
        for link in {call.link for call in waiting}:
            if (loss := link.loss()) is not None:
                self._end(link, loss)
        for call in waiting:
            if call.error is None and call.link.route is not None:
                connection = call.link.route.carrier.connections
                call.connection = call.connection or connection  # the request waited for the first one
                if call.connection != connection:
                    why = f"The server of {call.link.name} ended during the request, and has started again."
                    call.error = SilentError(why, "Run the command again.", "server-restarted")

    def _end(self, link: AgentLink, loss: Loss) -> None:
        link.silent, link.gone, link.ended = loss.why, loss.for_good, loss.error.code == "gone"
        link.refused = loss.error if isinstance(loss.error, AgentError) else None
        for call in self._calls.values():
            if call.link is link and not call.over:
                call.error = loss.error
