"""The process that answers questions in SQL for the server beside a job, and writes them as the command would.

Started by probe/serve/answers.py, which sends one question at a time.  It keeps the connection to the job, and so the
rows that it has read and what was derived from them.  Invariant: a question is one SELECT that can read the tables and
nothing else; for anything else, a large result, and SQL that DuckDB rejects, the command is told to answer it itself.
"""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from probe import protocol as wire
from probe.client.endpoints import Resolved, address_of
from probe.connection import Connection
from probe.errors import Interrupted, ProbeError, QueryError, SilentError
from probe.host import agent_memory
from probe.serve.confinement import confine, memory_share, spare_memory
from probe.serve.handover import ANSWERS, IPC, config
from probe.settings import NO_SERVER

from .output.result import ArrowResult, told
from .output.writers import WRITERS, Paper

if TYPE_CHECKING:
    from probe.query.host_part import HostPart
    from probe.query.result import Result

_MOST_CELLS, _MOST_BYTES = 4 << 20, 64 << 20  # of a result; writing more would take seconds and gigabytes here
_PIECE_BYTES = 256 << 10  # of an answer, in one message
_LEAST_ADDRESSES = 16 << 30  # bytes: libraries reserve more than they use
_MOST_TOLD = 1000  # characters
_REPEAT_S = 0.05  # a cancellation, until the question is over

Request = dict[str, Any]


class Answering:
    """run() until the server closes the socket.  role: of its connections to agents; memory_bytes: for DuckDB."""

    def __init__(self, server: socket.socket, role: str, memory_bytes: int) -> None:
        self._server, self._role, self._memory_bytes = server, role, memory_bytes
        self._questions: SimpleQueue[tuple[bytes, Request]] = SimpleQueue()
        self._credit = threading.Semaphore(0)  # messages that may be sent
        self._number = b""  # of the question that is being answered
        self._cancelled = False
        self._job: Connection | None = None
        self._part: HostPart | None = None
        self._asked_of: object = None  # what the connection was made for

    def run(self) -> None:
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            self._number, request = self._questions.get()
            try:
                (self._answer_part if request["kind"] == wire.PART else self._answer)(request)
            except Exception as error:  # no memory, or a bug of ours, which the command will show
                self._send(wire.ERROR, code="agent", message=f"declined: {type(error).__name__}: {error}"[:_MOST_TOLD])
            self._number = b""

    def _receive(self) -> None:
        """On a thread of its own: a cancellation comes while a question is being answered."""
        try:
            self._take_requests()
        finally:  # the server is gone, or there was no memory for a request: it starts another process
            os._exit(1)

    def _take_requests(self) -> None:
        unpacker = wire.Unpacker(wire.MAX_REQUEST_BYTES)
        while data := self._server.recv(_PIECE_BYTES):
            for number, header in unpacker.feed(data):
                request = wire.decode(header)
                if request["kind"] in (wire.QUERY, wire.PART):
                    self._cancelled, self._credit = False, threading.Semaphore(request["credit"])
                    self._questions.put((number, request))
                elif request["kind"] == wire.NEXT:
                    for _ in range(request["credit"]):
                        self._credit.release()
                elif request["kind"] == wire.CANCEL:
                    self._cancelled = True
                    threading.Thread(target=self._cancel, args=(number,), daemon=True).start()

    def _cancel(self, number: bytes) -> None:
        while self._number == number:
            self._credit.release()
            for each in (self._job, self._part):
                if each is not None:
                    each.cancel()
            time.sleep(_REPEAT_S)

    # ---- on the main thread

    def _answer(self, request: Request) -> None:
        written, failure = _Pieces(self._send_piece), None
        try:
            result = self._result(request)
            table = result.table
            if table.num_rows * table.num_columns > _MOST_CELLS or table.nbytes > _MOST_BYTES:
                raise QueryError("the result is large")
        except QueryError as error:  # the command explains it, or may do it
            self._send(wire.ERROR, code="agent", message=f"declined: {error.message}")
            return
        except ProbeError as error:
            failure = error
        try:
            if failure is None:
                paper = Paper(*request["paper"])
                before, after = told(result, request["explain"])
                self._send(wire.RESULT, before=before, after=after, count=result.num_rows)
                with io.BufferedWriter(written, _PIECE_BYTES) as sink:
                    WRITERS[request["format"]](ArrowResult(result.table), cast(BinaryIO, sink), paper)
        except ProbeError as error:
            failure = error
        written.over = True
        said = failure and {"code": failure.code, "message": failure.message, "hint": failure.hint}
        self._send(wire.ANSWERED, bytes=written.count, failure=said)

    def _answer_part(self, request: Request) -> None:
        """Of the ranks of this host; whatever fails, the client fetches rows instead."""
        from probe.query.host_part import HostPart

        self._part = self._part or HostPart(self._role, self._memory_bytes // 2)
        steps, data = self._part.answer(request, lambda: _resolved(request).addresses)
        for at in range(0, len(data), _PIECE_BYTES):
            self._send_piece(data[at : at + _PIECE_BYTES])
        self._send(wire.PARTED, steps=steps, bytes=len(data))

    def _result(self, request: Request) -> Result:
        """Raises ProbeError."""
        job = self._connection(request)
        if self._cancelled:
            raise Interrupted("Interrupted.")
        options = {name: request[name] for name in ("open_steps", "min_ranks", "max_fetch")}
        return job.query(request["sql"], **options)

    def _connection(self, request: Request) -> Connection:
        """To these agents: the one that there is, unless a new one might find other ranks silent."""
        asked_of = (sorted(request["agents"]), request["endpoint"], request["timeout"])
        if self._job is None or asked_of != self._asked_of or not self._job.is_whole:
            if self._job is not None:
                self._job.close()
                self._job = None
            self._job = Connection(_resolved(request), request["timeout"], role=self._role)
            self._job.confine_queries(self._memory_bytes)
            self._asked_of = asked_of
        return self._job

    def _send_piece(self, piece: bytes) -> None:
        self._credit.acquire()
        if self._cancelled:
            raise Interrupted("Interrupted.")
        self._send(wire.TEXT, payload=[piece])

    def _send(self, kind: str, payload: list[bytes] | None = None, **fields: Any) -> None:
        for part in wire.packed([self._number, wire.encode(kind, **fields), *(payload or [])]):
            self._server.sendall(part)


class _Pieces(io.RawIOBase):
    """A file that sends what is written.  count: bytes so far; over: nothing more is wanted, as after an error."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send_piece, self.count, self.over = send, 0, False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(memoryview(data)[:_PIECE_BYTES])
        if self.over:
            return len(piece)
        self._send_piece(piece)
        self.count += len(piece)
        return len(piece)


def _resolved(request: Request) -> Resolved:
    """Raises SilentError for an agent that has just ended."""
    agents: Mapping[str, int] = request["agents"]
    found = {id: (pid, agent_memory.facts(pid)) for id, pid in agents.items()}
    addresses = [address_of(pid, facts) for id, (pid, facts) in found.items() if facts is not None and facts.id == id]
    if len(addresses) < len(found):
        raise SilentError("A rank has ended during the request.", code="gone")
    return Resolved(request.get("endpoint", ""), sorted(addresses, key=lambda address: address.facts.rank or 0))


def main() -> None:
    """Of the process that the server starts."""
    given = config()
    memory = memory_share()
    confine(ANSWERS, max(_LEAST_ADDRESSES, memory))
    os.environ[NO_SERVER] = "1"  # agents are asked at their own sockets
    Answering(socket.socket(fileno=IPC), given["role"], spare_memory(memory) // 2).run()
