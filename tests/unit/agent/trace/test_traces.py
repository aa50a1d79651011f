"""A detach may come at any moment, also while a trace begins: no function keeps a kernel."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from probe import protocol as wire
from probe.agent.serve.server import Refused
from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.agent.trace import traces as traces_py
from probe.agent.trace.traces import Traces


class Server:
    """Of an agent, with one client that wants a function of this file traced."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def reply(self, key: Any, kind: str, **fields: Any) -> None: ...

    def trace(self, name: str = "traced") -> None:
        request = {"function": f"{__name__}:{name}", "since": "", "seconds": 60}
        self.handlers[wire.TRACE]((None, b"1"), request, [])


def traced() -> None: ...


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], int]]:
    """Has the function traced, and detaches before one of the lines that do so; how many of them there were."""
    monkeypatch.setattr(traces_py, "_RETENTION_BYTES", 1)
    streams, log = dict[str, Stream](), Log()

    def begin(place: int) -> int:
        server, seen = Server(), 0
        traces = Traces(server, streams, log)  # type: ignore[arg-type]

        def at_line(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal seen
            if event == "line":
                seen += 1
                if seen == place:
                    sys.settrace(None)
                    traces.close()
            return at_line

        files = {inspect.getfile(Traces)}
        sys.settrace(lambda frame, event, arg: at_line if frame.f_code.co_filename in files else None)
        try:
            server.trace()
        except Refused as error:
            assert "detached" in str(error)
        finally:
            sys.settrace(None)
            if seen < place:
                traces.close()
        return seen

    yield begin
    for part in (*streams.values(), log):
        part.close()


def test_a_detach_before_any_line_of_what_begins_a_trace_leaves_the_function_as_it_was(
    begin: Callable[[int], int],
) -> None:
    own, place = traced.__code__, 1
    while begin(place) == place:
        assert traced.__code__ is own, f"before line {place} of those that begin a trace"
        place += 1
    assert place > 20 and traced.__code__ is own


def test_a_function_whose_trace_is_refused_can_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_py, "_RETENTION_BYTES", 1)
    monkeypatch.setattr(traces_py.compiled, "why_not", lambda code: "of a reason")
    monkeypatch.setattr(sys.modules[__name__], "passing", lambda: None, raising=False)
    server, streams, log = Server(), dict[str, Stream](), Log()
    traces = Traces(server, streams, log)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="of a reason"):
        server.trace("passing")
    traces.close()
    gone = weakref.ref(sys.modules[__name__].passing)  # type: ignore[attr-defined]
    monkeypatch.undo()
    gc.collect()
    assert gone() is None
    for part in (*streams.values(), log):
        part.close()
