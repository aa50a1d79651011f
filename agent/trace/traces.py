"""The traces of an agent: which functions have a kernel in the place of their code, and until when.

Called by the server, on the agent's thread; a trace that would cost too much ends itself, on a thread of the job's.
Invariant: whatever ends a trace, its function has the code back that it had; a function has one trace at a time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

from ... import protocol as wire
from ...streams import CALLS, STREAMS
from ..serve.server import Key, Refused, Server
from ..storage.log import Log
from ..storage.rows import Stream
from ..taps.dynamo import skip
from ..torch_state import torch_is_imported
from . import compiled
from .calls import Calls
from .functions import NoFunction, find, named, names_of_users
from .kernel import NoKernel, Parameters, kernel_of

_RETENTION_BYTES = 32 << 20  # half a million calls
_MOST = 32  # functions at once
_MOST_CHARACTERS = 400  # of a name
_MOST_SECONDS = 86_400.0
_LEAVES = "the agent is being detached"
_UNWATCHED_S = 10.0  # after which its client is taken for gone; it asks four times a second


class Trace:
    """A function that is traced, from begin() on until end()."""

    def __init__(self, function: FunctionType, bound: bool, since: str, stream: Stream, log: Log) -> None:
        """bound: its first argument is not the caller's.  Raises NoKernel."""
        self.id, self.name, self.why_off, self.end_ns = log.next_id(), named(function), "", 0
        self.until: float | None = None
        self.looked_at = time.monotonic()
        self._function, self._original = function, function.__code__
        self.calls = Calls(stream, log.string(self.name), self.end)
        self._kernel = self.calls.kernel = self._made(bound, since)

    def begin(self) -> None:
        """Swap the code, unless it has been ended already."""
        if not self.end_ns:
            self._function.__code__ = self._kernel
            if self.end_ns:  # meanwhile, on another thread, which found nothing to put back
                self.end()

    def _made(self, bound: bool, since: str) -> CodeType:
        code = self._original
        hooks = self.calls.hooks(since, since in Parameters(code).named)
        kernel = kernel_of(code, *hooks, int(bound), since)
        if torch_is_imported():
            skip(kernel)
        return kernel

    def end(self, why: str = "") -> None:
        """Put the code back.  why: if it is before its time.  Any thread."""
        self.calls.stop()
        if not self.end_ns:
            self.end_ns, self.why_off = time.perf_counter_ns(), why
        if self._function.__code__ is self._kernel:
            self._function.__code__ = self._original

    def change(self, to: str | None) -> None:
        """End it, or let it go on without whoever wanted it."""
        self.looked_at = time.monotonic()
        if to == "stop":
            self.end()
        elif to == "keep":
            self.until = None

    def is_of(self, function: FunctionType) -> bool:
        return self._function is function and not self.end_ns

    @property
    def is_due(self) -> bool:
        """Whether its time is over, or whoever wanted it has gone."""
        if self.end_ns or self.until is None:
            return False
        return time.monotonic() >= min(self.until, self.looked_at + _UNWATCHED_S)

    def told(self) -> dict[str, Any]:
        code, calls = self._original, self.calls
        return {
            "id": self.id, "function": self.name, "file": code.co_filename, "line": code.co_firstlineno,
            "calls": calls.count, "start_ns": calls.start_ns, "end_ns": self.end_ns, "why_off": self.why_off,
        }  # fmt: skip


class Traces:
    """answer() serves requests, tick() and close() are called by the agent."""

    def __init__(self, server: Server, streams: dict[str, Stream], log: Log) -> None:
        self._server, self._streams, self._log = server, streams, log
        self._traces: dict[int, Trace] = {}
        self._closed = False
        server.handlers[wire.TRACE] = self._answer

    def tick(self) -> None:
        """End what is due; the agent's thread calls it at least once a second."""
        for trace in list(self._traces.values()):
            if trace.is_due:
                trace.end()

    def close(self) -> None:
        """End all of them, for good.  Any thread; in a forked child, too."""
        self._closed = True
        compiled.call_no_more(self._compilation_begins)
        while self._traces:
            with suppress(KeyError):  # both threads that close them are here
                self._traces.popitem()[1].end()

    def _compilation_begins(self, *_: Any) -> None:
        """Dynamo calls this, on a thread of the job's."""
        for trace in list(self._traces.values()):
            trace.end(compiled.BEGINS)

    def _answer(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if (name := request.get("function")) is not None:
            trace = self._begin(str(name)[:_MOST_CHARACTERS], request)
            told, names = ([], names_of_users()) if trace is None else ([trace], list[str]())
        else:
            told, names = self._wanted(request["ids"]), []
            for each in told:
                each.change(request["to"])
        self._server.reply(key, wire.TRACED, traces=[each.told() for each in told], names=names)

    def _wanted(self, ids: list[int] | None) -> list[Trace]:
        if ids is None:
            return [trace for trace in self._traces.values() if not trace.end_ns]
        return [self._traces[id] for id in ids if id in self._traces]

    def _begin(self, name: str, request: Mapping[str, Any]) -> Trace | None:
        """None if there is no such function."""
        self._forget_ended()
        if self._closed:
            raise Refused("agent", _LEAVES)
        since, seconds = str(request["since"])[:_MOST_CHARACTERS], request["seconds"]
        try:
            found = find(name)
            if found is None:
                return None
            function, bound = found
            if any(each.is_of(function) for each in self._traces.values()):
                raise Refused("already-traced", f"{named(function)} is traced already.")
            trace = Trace(function, bound, since, self._stream(), self._log)
        except NoFunction as error:
            raise Refused("no-function", str(error)) from None
        except NoKernel as error:
            raise Refused("no-function", f"{name} cannot be traced: {error}.") from None
        trace.until = time.monotonic() + min(float(seconds), _MOST_SECONDS)
        self._traces[trace.id] = trace
        compiled.call_at_begin(self._compilation_begins)  # before the next line, or one that begins now is missed
        why_not = compiled.why_not(function.__code__)
        if not why_not and not compiled.while_it_does_not_compile(trace.begin):
            why_not = compiled.COMPILES
        if self._closed:  # since it was looked at: what has closed them may have missed this one
            self.close()
            raise Refused("agent", _LEAVES)
        if why_not:
            self._traces.pop(trace.id, trace).end()  # no collector goes through its kernel, which leads to the function
            raise Refused("no-function", f"{trace.name} cannot be traced: {why_not}.")
        return trace

    def _forget_ended(self) -> None:
        self.tick()
        ended = [id for id, trace in self._traces.items() if trace.end_ns]
        for id in ended[: max(0, len(self._traces) - _MOST + 1)]:
            del self._traces[id]
        if len(self._traces) >= _MOST:
            raise Refused("agent", f"{_MOST} functions are traced already")

    def _stream(self) -> Stream:
        if CALLS not in self._streams:
            self._streams[CALLS] = Stream(CALLS, STREAMS[CALLS], _RETENTION_BYTES)
        return self._streams[CALLS]
