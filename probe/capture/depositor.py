"""Between a rank and its trace: the bytes from its agent, and the rows made of them back to it.

Made by capture, one for a rank.  Invariant: no request is larger than an agent accepts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any

from .. import protocol as wire
from ..client.client import AgentLink, Call, Client, Header
from ..client.deposits import deposited, in_parts
from ..errors import AgentError
from ..host.peaks import cpu_name
from ..streams import KERNELS, OPERATORS, STREAMS
from .trace import Trace

_ANSWER_S = 30.0
_ROWS_AT_ONCE = 16_384


class Depositor:
    """trace() once, then deposit() once.  id: of the capture."""

    def __init__(self, client: Client, link: AgentLink, id: str) -> None:
        self._client, self._link, self._id = client, link, id

    def trace(self, size: int) -> bytes:
        """Its bytes, which the agent then frees.  Raises SilentError, AgentError."""
        pieces = bytearray()

        def take(call: Call, header: Header, payload: Sequence[Any]) -> None:
            pieces.extend(payload[0])

        call = self._client.send(self._link, wire.EVENTS, id=self._id, first=0, last=size, credit=wire.CREDIT)
        if self._client.wait([call], time.monotonic() + _ANSWER_S + size / 1e6, take):
            raise self._link.silence()
        call.result()
        self._keep()
        return bytes(pieces)

    def deposit(self, text: bytes, told: Header) -> Trace:
        """The rows of this trace become the agent's.  told: as `captured` has it.  Raises SilentError, AgentError."""
        try:
            cpu = cpu_name(told["cpu"], told["threads"])
            trace = Trace.parse(text, told["wall_offset_ns"], cpu, told["cuda"])
        except (ValueError, LookupError, TypeError) as error:
            why = f"{self._link.name}: torch wrote a trace that cannot be read: {error!r}."
            raise AgentError(why, code="no-capture") from None
        ids: dict[str, int] = {}
        for names in in_parts(trace.strings):
            ids |= zip(names, self._keep([*map(deposited, names)])["ids"], strict=True)
        following, name = told["next"], ids.__getitem__
        for part in _packed(OPERATORS, trace.operator_rows(name, following[OPERATORS])):
            self._keep(operators=part)
        for part in _packed(KERNELS, trace.kernel_rows(name, following[KERNELS], following[OPERATORS])):
            self._keep(kernels=part)
        self._keep(last=True)
        return trace

    def _keep(
        self, names: Sequence[str] = (), operators: bytes = b"", kernels: bytes = b"", last: bool = False
    ) -> Header:
        call = self._client.send(self._link, wire.KEEP, operators, kernels, id=self._id, names=names, last=last)
        if self._client.wait([call], time.monotonic() + _ANSWER_S):
            raise self._link.silence()
        return call.result()


def _packed(stream: str, rows: Iterable[tuple[int, ...]]) -> Iterator[bytes]:
    pack, part = Struct(f"<{len(STREAMS[stream])}q").pack, bytearray()
    for number, row in enumerate(rows, 1):
        part += pack(*row)
        if number % _ROWS_AT_ONCE == 0:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)
