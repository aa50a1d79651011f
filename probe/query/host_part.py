"""One host's part of an answer: a partial query over the ranks of this host, as a client has seen them.

Called in the process that answers for the server (cli/answers.py).  It reads rows as a query does, of some ranks
at a time.
Invariant: nothing is run but what probe.query.decomposition writes; whatever fails is an error, never a part of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from .. import protocol as wire
from ..client.client import Client
from ..client.endpoints import Address
from ..client.handshake import all_answer, open_links
from ..errors import QueryError
from ..snapshot.pinned import HostSnapshot, PinnedSource
from ..snapshot.steps_known import told
from ..version import __version__
from .derived_cache import DerivedCaches
from .opening import open_database

_AT_ONCE_BYTES = 32 << 20  # raw rows of so many ranks are read, derived and summed up before those of others
_TIMEOUT_S = 5.0

Request = dict[str, Any]
Pins = dict[str, dict[str, Any]]


class HostPart:
    """answer() one request at a time; cancel() from any thread.  role: of the connections to agents."""

    def __init__(self, role: str, memory_bytes: int) -> None:
        self._role = role
        self._database = open_database()
        self._database.confine(memory_bytes)
        self._client: Client | None = None
        self._source: PinnedSource | None = None
        self._of: object = None

    def answer(self, request: Request, addresses: Callable[[], Sequence[Address]]) -> tuple[list[Any], bytes]:
        """What `parted` tells of steps, in the order of the request, and the Arrow stream; b"" without SQL.

        Raises ProbeError, WireError.
        """
        if (request["version"], request["engine"]) != (__version__, duckdb.__version__):
            raise QueryError("this host has other versions")
        source = self._connected(request, addresses)
        pins = source.pinned(request["ranks"])
        if request["sql"] is None:
            source.pins = pins
            job = HostSnapshot(source, request["open_steps"], None)
            found = {rank.facts.id: told(rank.timeline) for rank in job.ranks}
            return [found[id] for id in pins], b""
        parts = [self._part(request, source, some) for some in self._pieces(pins)]
        return [], _stream(pa.concat_tables(parts), request["most"])

    def _part(self, request: Request, source: PinnedSource, pins: Pins) -> Any:
        source.pins = pins
        self._database.caches = DerivedCaches()  # with what was fetched, all ranks would lie in memory in the end
        source.account.begin(None)
        job = HostSnapshot(source, request["open_steps"], request["completed"])
        table = self._database.run_part(request["sql"], job, lambda: self._client is None or self._client.interrupted)
        if len(job.ranks) < len(pins):
            raise QueryError("a rank has left")
        return table

    def _pieces(self, pins: Pins) -> Iterator[Pins]:
        """Ranks whose rows fit into memory together."""
        piece, size = Pins(), 0
        for id, at in pins.items():
            streams = at["facts"].streams
            rank = sum(len(streams[name].slots) * 8 * min(last, at["facts"].ring_rows(name))
                       for name, last in at["streams"].items() if name in streams)  # fmt: skip
            if piece and size + rank > _AT_ONCE_BYTES:
                yield piece
                piece, size = Pins(), 0
            piece[id] = at
            size += rank
        yield piece

    def _connected(self, request: Request, addresses: Callable[[], Sequence[Address]]) -> PinnedSource:
        """The connection that there is, unless a new one might find other ranks silent."""
        of = sorted(request["agents"])
        if self._client is None or self._source is None or of != self._of or not all_answer(self._client):
            self.close()
            self._client = Client(role=self._role)
            open_links(self._client, addresses(), _TIMEOUT_S)
            self._source, self._of = PinnedSource(self._client, _TIMEOUT_S), of
        self._client.interrupted = False
        return self._source

    def cancel(self) -> None:
        if self._client is not None:
            self._client.interrupted = True

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = self._source = None


def _stream(table: Any, most: float) -> bytes:
    """Raises QueryError for one of more bytes."""
    if table.nbytes > min(most, wire.MAX_PART_BYTES):
        raise QueryError("the part is as large as rows are")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
