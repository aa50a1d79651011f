"""Between a rank and its trace: the bytes from its agent, and the rows made of them back to it, rank by rank.

Made by capture, one for a rank.  Invariant: no request is larger than an agent accepts, and no agent takes the command
for gone while others have their turn.
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
from ..host.peaks.known import cpu_name
from ..streams import KERNELS, OPERATORS, STREAMS
from .trace import Trace

_ANSWER_S = 30.0
_ROWS_AT_ONCE = 16_384
_STAY_S = 30.0  # agents take a command for gone that has said nothing for two minutes


class Depositor:
    """trace() once, then deposit() once.  id: of the capture."""

    def __init__(self, client: Client, link: AgentLink, id: str) -> None:
        self._client, self._link, self._id = client, link, id
        self._has_trace = self._is_over = False

    def trace(self, size: int) -> bytes:
        """Its bytes, which the agent then frees.  Raises SilentError, AgentError."""
        pieces = bytearray()

        def take(call: Call, header: Header, payload: Sequence[Any]) -> None:
            pieces.extend(payload[0])

        call = self._events(size)
        if self._client.wait([call], time.monotonic() + _ANSWER_S + size / 1e6, take):
            raise self._link.silence()
        call.result()
        self._keep()
        self._has_trace = True
        return bytes(pieces)

    def stay(self) -> None:
        """Let the agent hear that this command is there, until its rows have come; nothing is waited for."""
        if self._is_over:
            return
        if self._has_trace:
            call = self._client.send(self._link, wire.KEEP, b"", b"", id=self._id, names=(), last=False)
        else:  # which the other request would free
            call = self._events(0)
        self._client.forget([call])

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
        self._is_over = True
        return trace

    def _events(self, size: int) -> Call:
        return self._client.send(self._link, wire.EVENTS, id=self._id, first=0, last=size, credit=wire.CREDIT)

    def _keep(
        self, names: Sequence[str] = (), operators: bytes = b"", kernels: bytes = b"", last: bool = False
    ) -> Header:
        call = self._client.send(self._link, wire.KEEP, operators, kernels, id=self._id, names=names, last=last)
        if self._client.wait([call], time.monotonic() + _ANSWER_S):
            raise self._link.silence()
        return call.result()


class InTurn:
    """Goes through depositors one by one, however often; meanwhile the other agents hear every half minute that this
    command is there.  since: the moment of time.monotonic() after which each has heard of it."""

    def __init__(self, depositors: Sequence[Depositor], since: float) -> None:
        self._depositors, self._heard = depositors, since

    def __iter__(self) -> Iterator[Depositor]:
        for each in self._depositors:
            if time.monotonic() - self._heard >= _STAY_S:
                self._heard = time.monotonic()
                for other in self._depositors:
                    other.stay()
            yield each


def _packed(stream: str, rows: Iterable[tuple[int, ...]]) -> Iterator[bytes]:
    pack, part = Struct(f"<{len(STREAMS[stream])}q").pack, bytearray()
    for number, row in enumerate(rows, 1):
        part += pack(*row)
        if number % _ROWS_AT_ONCE == 0:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)
