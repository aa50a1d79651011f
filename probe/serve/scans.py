"""Rows for clients, read out of the agents' memory by the server, so that the training does not even send them.

Used by relay.  An agent whose memory cannot be read sends its rows itself, and so do all until numpy is imported.
Invariant: nothing here waits; a scan runs on credit, and what its client has not taken is at most what that allows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import protocol as wire
from ..streams import COLLECTIVES
from .agents import Agents

if TYPE_CHECKING:
    from ..snapshot.memory_source import RingReader

_AT_ONCE, _AT_ONCE_PER_CLIENT = 64, 4  # scans that are sent; the others wait for their turn
_MOST, _MOST_PER_CLIENT = 8192, 1024  # those that wait included; our own clients have one for each rank
_MOST_CREDIT = 4 * wire.CREDIT
_MOST_TEMPLATE, _MOST_PATCHES = 4096, 64
_ROWS_AT_ONCE = 1 << 16  # of a scan; what a job's recent steps have is less
_REST_S_A_ROW = 1e-6  # after each further message: on a full machine the training waits for the core
_READER, _ARROW = (
    "probe.snapshot.memory_source",
    "pyarrow",
)  # with numpy; a tenth of a second, on a full machine seconds
_IMPORTING_S = 0.02  # between two looks at what is being imported
_CHANGED_LATER = {COLLECTIVES}  # the end of an operation is written in place: only the agent can show such rows whole


Messages = Iterator[tuple[int, list[bytes]]]  # how many rows, and the frames after the ids


class Request(NamedTuple):
    """Which one: ids are the client's own."""

    client: Any
    agent: bytes
    id: bytes


class _Running:
    def __init__(self, messages: Messages, credit: int) -> None:
        self.messages, self.credit = messages, min(credit, _MOST_CREDIT)
        self.sent = 0
        self.touched = self.due = time.monotonic()


class _Imports:
    """Modules that are imported on a thread of their own when they are first asked for."""

    def __init__(self) -> None:
        self._found: dict[str, bool | None] = {}

    def found(self, name: str) -> bool | None:
        """Whether it could be imported; None until that is known."""
        if name not in self._found:
            self._found[name] = None
            Thread(target=self._import, args=(name,), daemon=True).start()
        return self._found[name]

    def _import(self, name: str) -> None:
        try:
            import_module(name)
            self._found[name] = True
        except ImportError:  # that this user cannot read, after an attach by root
            self._found[name] = False


class Scans:
    """take() each request; advance() after rest_s().  send: False if the client is gone or does not read."""

    def __init__(self, agents: Agents, send: Callable[[Request, list[bytes]], bool]) -> None:
        self._agents, self._send = agents, send
        self._running: dict[Request, _Running] = {}
        self._rings: dict[bytes, RingReader | None] = {}
        self._imports = _Imports()
        self._waiting: dict[Request, tuple[Mapping[str, Any], list[bytes]]] = {}  # for pyarrow

    def take(self, request: Request, header: Mapping[str, Any], payload: list[bytes]) -> bool:
        """Whether the request was for this and is being answered; otherwise it is for the agent.

        Raises LookupError, TypeError or ValueError for a malformed request, OSError if the agent has just ended.
        """
        kind = header["kind"]
        if kind == wire.SCAN:
            return self._begin(request, header, payload)
        of = Request(request.client, request.agent, str(header.get("of", "")).encode())
        running = self._running.get(request if kind == wire.NEXT else of)
        if kind == wire.NEXT and running is not None:
            running.credit = min(running.credit + int(header["credit"]), _MOST_CREDIT)
            running.touched = time.monotonic()
        elif kind == wire.CANCEL and (running is not None or of in self._waiting):
            self._fail(of, "interrupted", "cancelled")
        else:
            return False
        return True

    def rest_s(self, longest: float) -> float:
        """For how long nothing is to be sent."""
        if self._waiting:
            return min(longest, _IMPORTING_S)
        now = time.monotonic()
        rests = (running.due - now for running in self._active().values() if running.credit > 0)
        return max(0.0, min(rests, default=longest))

    def advance(self) -> None:
        """Send one message of each scan that has credit and has rested."""
        for request, (header, payload) in list(self._waiting.items()):
            self._begin_late(request, header, payload)
        now = time.monotonic()
        for request, running in self._active().items():
            if running.credit <= 0 or running.due > now:
                continue
            try:
                rows, frames = next(running.messages)
            except StopIteration:
                del self._running[request]
                self._send(request, [wire.encode(wire.END, rows=running.sent)])
            except (ImportError, OSError) as error:  # its process ends just now, or pyarrow cannot be read
                self._rings.pop(request.agent, None)
                self._fail(request, "gone", f"its memory cannot be read: {error}")
            else:
                running.sent += rows
                running.credit -= 1
                if not self._send(request, frames):
                    self._running.pop(request, None)
                running.due = time.monotonic() + (rows * _REST_S_A_ROW if running.sent > _ROWS_AT_ONCE else 0.0)

    def tidy(self) -> None:
        """Once a second: drop scans whose clients ask for nothing, and forget agents that are gone."""
        now, active = time.monotonic(), self._active()
        for request, running in list(self._running.items()):
            if request not in active:
                running.touched = now
            elif running.touched < now - wire.IDLE_SECONDS:
                self._fail(request, "agent", f"nothing was asked of this scan for {wire.IDLE_SECONDS:.0f} s")
        self._rings = {agent: ring for agent, ring in self._rings.items() if agent in self._agents.paths}

    def drop(self, client: Any) -> None:
        """The client is gone."""
        self._running = {request: one for request, one in self._running.items() if request.client != client}
        self._waiting = {request: one for request, one in self._waiting.items() if request.client != client}

    def _active(self) -> dict[Request, _Running]:
        """Those whose turn it is, in the order of the requests; so many of one client at most."""
        active: dict[Request, _Running] = {}
        own = Counter[Any]()
        for request, running in self._running.items():
            own[request.client] += 1
            if own[request.client] <= _AT_ONCE_PER_CLIENT:
                active[request] = running
            if len(active) == _AT_ONCE:
                break
        return active

    def _begin(self, request: Request, header: Mapping[str, Any], payload: list[bytes]) -> bool:
        stream = str(header["stream"])
        slots = self._agents.slots(request.agent, stream)
        if slots is None or stream in _CHANGED_LATER:
            return False
        own = sum(each.client == request.client for each in (*self._running, *self._waiting))
        if own >= _MOST_PER_CLIENT or len(self._running) + len(self._waiting) >= _MOST:
            self._fail(request, "agent", f"{own} scans of this client are running already")
            return True
        if not payload and None in (self._imports.found(_READER), self._imports.found(_ARROW)):
            self._waiting[request] = header, payload
            return True
        ring = self._ring(request.agent)
        if ring is None:
            return False
        first = ring.first(stream, slots, int(header["first"]), int(header["last"]), header.get("since"))
        if first is None and payload:  # the agent knows which is its last row
            return False
        if first is None:
            raise ValueError(f"row {header['last']} is not there")
        tables = _tables(ring, stream, slots, first, int(header["last"]))
        messages = _in_template(tables, payload[0], header["patch"]) if payload else _in_columns(tables, slots)
        self._running[request] = _Running(messages, int(header["credit"]))
        return True

    def _begin_late(self, request: Request, header: Mapping[str, Any], payload: list[bytes]) -> None:
        """Begin a scan that has waited for an import, or go on waiting."""
        del self._waiting[request]
        try:
            begun = self._begin(request, header, payload)
        except (LookupError, TypeError, ValueError, OSError) as error:
            self._fail(request, "protocol", f"bad request: {type(error).__name__}: {error}")
        else:
            if not begun:
                self._fail(request, "gone", "its memory cannot be read")

    def _ring(self, agent: bytes) -> RingReader | None:
        if not self._imports.found(_READER):
            return None
        if agent not in self._rings:
            pid = self._agents.pid(agent)
            self._rings[agent] = None if pid is None else _ring_of(pid, agent.decode())
        return self._rings[agent]

    def _fail(self, request: Request, code: str, message: str) -> None:
        self._running.pop(request, None)
        self._waiting.pop(request, None)
        self._send(request, [wire.encode(wire.ERROR, code=code, message=message)])


def _ring_of(pid: int, id: str) -> RingReader | None:
    from ..snapshot.memory_source import RingReader

    return RingReader.of(pid, id)


Tables = Iterator[tuple[int, Any]]  # the number of the first row, and the rows as numpy has them


def _tables(ring: RingReader, stream: str, slots: tuple[str, ...], first: int, last: int) -> Tables:
    while first <= last:
        table = ring.rows(stream, slots, first, min(last, first + wire.ROWS_A_MESSAGE - 1))[1]
        yield first, table
        first += len(table)


def _in_template(tables: Tables, template: bytes, patch: list[Any]) -> Messages:
    """Each message as agent/serve/scans.py makes it.  Raises TypeError or ValueError for no template."""
    header, places = bytearray(template), [(int(at), int(factor)) for at, factor in patch]
    if len(header) > _MOST_TEMPLATE or len(places) > _MOST_PATCHES:
        raise ValueError("a template is larger than that of any batch")
    if any(not 0 <= at <= len(header) - 8 or not 0 <= factor < 1 << 31 for at, factor in places):
        raise ValueError("a patch lies outside its template")

    def messages() -> Messages:
        for first, table in tables:
            for at, factor in places:
                header[at : at + 8] = (len(table) * factor).to_bytes(8, "little")
            yield len(table), [wire.encode(wire.ROWS, first=first, rows=len(table)), bytes(header), table.tobytes()]

    return messages()


def _in_columns(tables: Tables, slots: tuple[str, ...]) -> Messages:
    """The complete rows, a column for each slot; the schema is a part of the first message."""
    import pyarrow as pa

    from ..snapshot.rows import complete

    schema = pa.schema([(slot, pa.int64()) for slot in slots])
    head = schema.serialize().to_pybytes()
    for first, table in tables:
        rows = complete(table, first)
        columns = [pa.array(rows[:, place]) for place in range(len(slots))]
        batch = pa.record_batch(columns, schema=schema).serialize().to_pybytes()
        yield len(rows), [wire.encode(wire.ROWS, first=first, rows=len(rows)), head + batch]
        head = b""
