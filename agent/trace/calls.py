"""The hooks of a traced function: they write a row for each call, and end the trace where it would cost too much.

Made by the traces, called by the kernel on the job's threads.  Invariant: nothing is raised into a call but what a
signal handler of the job has raised; and once the trace is over, calls under way write no more.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from operator import length_hint
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

from ..fault import in_words
from ..job_signals import raised_by_handler
from ..noop import noop
from ..storage.rows import Stream
from ..taps.dynamo import shielded_from_dynamo
from ..torch_state import torch_is_imported
from .held import UNKNOWN, held_reader, size_reader, waited_ns

MOST_PER_SECOND = 20_000  # calls: 2 to 4 % of a core
_MEASURED = 4096  # calls: a fifth of a second at that rate
_NO_END = 1 << 62
_MOST_DEEP = 100  # calls within calls: each takes one more frame of those that the interpreter allows

Before = Callable[[Any, Any], Any]
After = Callable[[Any, int], None]


class Calls:
    """Those of one traced function.  end(why) is called once if the trace has to be over, on the thread of the call."""

    def __init__(self, stream: Stream, function: int, end: Callable[[str], None]) -> None:
        self._stream, self._function, self.end = stream, function, end
        self._numbers = iter(range(_NO_END))
        self._measured_ns = self.start_ns = perf_counter_ns()
        self._active: list[None] = []  # an element for each call under way, also of a generator that is suspended
        self.kernel: CodeType | None = None
        self.over = False

    @property
    def count(self) -> int:
        """Calls begun."""
        return _NO_END - length_hint(self._numbers)

    def stop(self) -> None:
        """Write no more.  Any thread."""
        self.over, self.end, self.kernel = True, noop, None  # which leads back here, and no collector goes through code

    def hooks(self, since: str, is_parameter: bool) -> tuple[Before, After]:
        """since: of what, "" for nothing; is_parameter: before() gets its value, otherwise all arguments."""
        held_in = held_reader("" if is_parameter else since)
        before, after = self._before(held_in, bool(since)), self._after()
        if torch_is_imported():
            return shielded_from_dynamo(before), shielded_from_dynamo(after)
        return before, after

    def _before(self, held_in: Callable[[Any], Any], has_since: bool) -> Before:
        size = size_reader()

        def before(
            first: Any,
            given: Any,
            calls: Calls = self,
            number: Any = self._numbers.__next__,
            active: list[None] = self._active,
            size_of: Any = size,
            ident: Any = get_ident,
            clock: Any = perf_counter_ns,
        ) -> Any:
            try:
                if calls.over:
                    return None
                if not (number() + 1) % _MEASURED:
                    calls._measure()
                active.append(None)
                if len(active) >= _MOST_DEEP:
                    calls._look_how_deep(sys._getframe())
                waited = waited_ns(held_in(given)) if has_since else UNKNOWN
                return size_of(first), waited, ident(), clock()
            except Exception as error:  # inside a call of the job's: no exception may escape
                return calls._fault(error)

        return before

    def _after(self) -> After:
        stream = self._stream

        def after(
            call: Any,
            flags: int,
            calls: Calls = self,
            active: list[None] = self._active,
            claim: Any = stream.claim,
            pack_into: Any = stream.pack_into,
            buffer: Any = stream.buffer,
            function: int = self._function,
            clock: Any = perf_counter_ns,
        ) -> None:
            now = clock()
            try:
                if call is None:
                    return
                active.pop()
                if not calls.over:
                    size, waited, thread, start = call
                    offset, seq = claim()
                    pack_into(buffer, offset, start, now, function, size, waited, thread, flags, seq)
            except Exception as error:
                calls._fault(error)

        return after

    def _look_how_deep(self, frame: FrameType | None) -> None:
        """So many calls are under way: end the trace if this one is inside of all of them.  0.7 µs for ten frames."""
        deep = 0
        while frame is not None and deep < _MOST_DEEP:
            deep, frame = deep + (frame.f_code is self.kernel), frame.f_back
        if deep >= _MOST_DEEP:
            self.end(f"it calls itself {_MOST_DEEP} deep")

    def _measure(self) -> None:
        now = perf_counter_ns()
        rate = _MEASURED * 1e9 / max(1, now - self._measured_ns)
        self._measured_ns = now
        if rate > MOST_PER_SECOND:
            self.end(f"it is called {rate:,.0f} times a second; at most {MOST_PER_SECOND:,} are traced")

    def _fault(self, error: Exception) -> None:
        if raised_by_handler(error):
            raise error
        self.end(f"the trace had a fault: {in_words(error)}")
