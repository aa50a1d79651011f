"""Replays of CUDA graphs: the code of torch.cuda.CUDAGraph.replay is swapped for code that records when it ran.

What a graph replays calls no module and no collective, so its replays are all that is seen of it.  Our code runs the
original code as a separate function.
Invariant: what the swapped code calls lives in graphs.py's globals under _probe_* and is never deleted, only made
inert, because replays in flight still use it.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from types import CellType, CodeType, FunctionType
from typing import Any, TypeGuard
from weakref import ref

from ...streams import FIRST_GRAPH, GRAPH, SAMPLED, SPANS
from ..torch_state import cuda_is_in_use
from .code_around import code_around
from .device.clocks import started
from .dynamo import shielded_from_dynamo
from .tap import Tap, TapContext

_MOST = 4096  # graphs with a number
_SOURCE = """
class _:
    def replay(self):
        _probe_start = _probe_replays()
        _probe_result = _probe_function("original", globals(), "replay", None, (_probe_cell(__class__),))(self)
        _probe_replayed(self, _probe_start)
        return _probe_result
"""


class Graphs(Tap):
    """switch() runs on any thread, any number of times; replays in flight are not disturbed."""

    name, on_demand, off_after = "graphs", True, ("graphs",)

    def __init__(self, context: TapContext) -> None:
        self._context = context
        self._graphs_py: Any = sys.modules.get("torch.cuda.graphs")
        self._target: Any = getattr(getattr(self._graphs_py, "CUDAGraph", None), "replay", None)
        self._original: CodeType | None = getattr(self._target, "__code__", None)
        self._code = code_around(_SOURCE, self._original) if _is_known(self._original) else None
        self._functions = _functions(context, context.reporter(self.name))

    @property
    def state(self) -> str | None:
        if self._code is None:
            return "off: this torch's CUDAGraph.replay is not known"
        return super().state if cuda_is_in_use() else None

    def switch(self, flags: int, spend: Callable[[int], None] | None = None) -> None:
        if self._code is None:
            return
        if flags & SAMPLED and cuda_is_in_use():
            self._graphs_py.__dict__.update(self._functions)
            self._target.__code__ = self._code
        elif self._target.__code__ is self._code:
            self._target.__code__ = self._original
            self._graphs_py.__dict__.update(_INERT)


def _is_known(code: CodeType | None) -> TypeGuard[CodeType]:
    if code is None:
        return False
    return code.co_freevars == ("__class__",) and code.co_varnames[: code.co_argcount] == ("self",)


def _functions(context: TapContext, report_fault: Callable[[Exception], None]) -> dict[str, Any]:
    """The globals that the swapped code calls, on the thread that replays; no exception of ours may escape there."""
    device, append = context.taps["device"], context.streams[SPANS].append
    numbers: dict[int, tuple[Any, int]] = {}  # by id
    made = iter(range(1, 1 << 62))

    def number_of(graph: Any) -> int:
        known = numbers.get(id(graph))
        if known is None or known[0]() is not graph:
            if len(numbers) >= _MOST:
                numbers.clear()
            known = numbers[id(graph)] = ref(graph), next(made)
        return known[1]

    def replays() -> int:
        clocks = device.clocks
        begun = clocks.begin_replay() if clocks is not None and clocks.on else None
        return started(perf_counter_ns(), begun)

    def replayed(graph: Any, start: int) -> None:
        try:
            append(start, perf_counter_ns(), FIRST_GRAPH - number_of(graph), get_ident(), GRAPH)
            if device.clocks is not None:
                device.clocks.end(start, GRAPH)
        except Exception as error:
            report_fault(error)

    return {
        "_probe_replays": shielded_from_dynamo(replays),
        "_probe_replayed": shielded_from_dynamo(replayed),
        "_probe_function": FunctionType,
        "_probe_cell": CellType,
    }


def _nothing(*_: Any) -> int:
    return 0


_INERT: dict[str, Any] = {"_probe_replays": _nothing, "_probe_replayed": _nothing}
