"""Sends rows and the log to readers, as slices of the memory itself, without anything waiting for the transfer.

Called by the server on the agent's thread.  Invariant: nothing is converted; the header in front of the rows is the
reader's own template, with the numbers filled in.
"""

from __future__ import annotations

from typing import Any

from ... import protocol as wire
from ..storage.log import Log
from ..storage.rows import Stream
from .server import Key, Refused, Server

_TEMPLATE_BYTES, _PATCHES = 4096, 64  # limits per scan; every message of the scan is made from them


class Scans:
    """rows() and log() start a stream, which the server then sends."""

    def __init__(self, server: Server, streams: dict[str, Stream], log: Log) -> None:
        self._server, self._streams, self._log = server, streams, log
        server.handlers |= {wire.SCAN: self.rows, wire.LOG: self.log}

    def rows(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        stream = self._streams.get(request["stream"])
        if stream is None:
            raise Refused("protocol", f"no stream {request['stream']!r}: there are {', '.join(self._streams)}")
        template = bytearray(payload[0])
        patch = [(int(offset), int(multiplier)) for offset, multiplier in request["patch"]]
        if len(template) > _TEMPLATE_BYTES or len(patch) > _PATCHES:
            raise Refused("protocol", "a template is larger than that of any batch")
        if any(not 0 <= offset <= len(template) - 8 or not 0 <= multiplier < 1 << 31 for offset, multiplier in patch):
            raise Refused("protocol", "a patch lies outside its template")
        first, last = int(request["first"]), min(int(request["last"]), stream.position())
        if request.get("since"):
            slot, value = request["since"]
            first = stream.since(first, last, str(slot), int(value))

        def messages() -> Any:
            for number, rows in stream.read(first, last, wire.ROWS_A_MESSAGE):
                count = len(rows) // stream.row_bytes
                for offset, multiplier in patch:
                    template[offset : offset + 8] = (count * multiplier).to_bytes(8, "little")
                yield count, [wire.encode(wire.ROWS, first=number, rows=count), bytes(template), rows]

        self._server.stream(key, int(request["credit"]), messages())

    def log(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        first, last = max(int(request["first"]), 8), min(int(request["last"]), self._log.committed)

        def messages() -> Any:
            for start in range(first, last, wire.LOG_BYTES_A_MESSAGE):
                data = self._log.read(start, min(start + wire.LOG_BYTES_A_MESSAGE, last))
                yield len(data), [wire.encode(wire.LOG, first=start), data]

        self._server.stream(key, int(request["credit"]), messages())
