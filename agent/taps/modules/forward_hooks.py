"""Module calls by torch's own global hooks, for a torch whose nn.Module._wrapped_call_impl has unknown code.

This records the same spans and marks as forward.py at some four times its cost.  It cannot see keyword arguments, the
samples of a batch, or a call that ends in a BaseException other than an Exception, and it does not mark compiled
regions as such.  Dynamo guards the dicts of hooks, so code compiled before the hooks are installed may be compiled once
more.
Invariant: torch iterates over these dicts during a call, so they change only while no other thread can run.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

from ....streams import FAILED, FORWARD, SAMPLED, SPANS
from ...inspect.exclusive import exclusively
from ...storage.rows import Stream
from ..dynamo import skip
from ..tap import ReportFault, Tap, TapContext
from .backward import Backward
from .module_calls import mark_before, row_after, row_and_marks_after

_DEEPEST = 1000  # calls under way on a thread; older entries were left by exceptions that no hook saw


class ForwardHooks(Tap):
    """Used instead of Forward: switch() runs on any thread, any number of times."""

    name, off_after = "forward", ("forward", "backward")
    state = "on: hooks, this torch's _wrapped_call_impl is not known"

    def __init__(self, context: TapContext) -> None:
        spans, backward, report_fault = context.streams[SPANS], context.taps["backward"], context.reporter(self.name)
        self._module_py, self._sampling = sys.modules["torch.nn.modules.module"], context.sampling
        self._mode = SimpleNamespace(marks=True, spend=None)  # what the hooks do at present
        self._before, self._after = _hooks(self._mode, spans, backward, report_fault)
        self._handles: list[Any] = []

    @property
    def installed(self) -> bool:
        return bool(self._handles)

    def switch(self, flags: int, spend: Callable[[int], None] | None = None) -> None:
        if flags & SAMPLED:
            self._mode.marks, self._mode.spend = self._sampling.backward, spend
            if not self._handles:
                exclusively(self._put, self._is_hook)
        elif self._handles and not exclusively(self._take, self._is_hook):
            self._take()

    def _put(self) -> None:
        self._handles = [
            self._module_py.register_module_forward_pre_hook(self._before),
            self._module_py.register_module_forward_hook(self._after, always_call=True),
        ]

    def _take(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _is_hook(self, code: Any) -> bool:
        return code is self._before.__code__ or code is self._after.__code__


def _hooks(
    mode: SimpleNamespace, spans: Stream, backward: Backward, report_fault: ReportFault
) -> tuple[Callable[..., None], Callable[..., None]]:
    clock, ident, raised = perf_counter_ns, get_ident, sys.exc_info
    mark, row, row_and_marks = mark_before(backward), row_after(spans, backward), row_and_marks_after(spans, backward)
    is_compiling = sys.modules["torch"].compiler.is_compiling
    under_way: dict[int, list[tuple[int, int, int, Any]]] = {}  # thread -> its calls: id, start, number, exception

    def before(module: Any, args: Any) -> None:
        if is_compiling():  # the compiler evaluates this and drops the rest of the hook
            return
        try:
            calls = under_way.setdefault(ident(), [])
            del calls[:-_DEEPEST]
            begin = clock()
            entered = mark(module, args, {}) if mode.marks else 0
            start = clock()
            calls.append((id(module), start, entered, raised()[1]))
            if mode.spend is not None:
                mode.spend(start - begin)
        except Exception as error:  # inside a user's forward: no exception may escape
            report_fault(error)

    def after(module: Any, args: Any, output: Any) -> None:
        if is_compiling():
            return
        now = clock()
        try:
            calls = under_way.get(ident(), [])
            while calls:
                key, start, entered, handled = calls.pop()
                if key != id(module):
                    continue  # it ended in an exception that no hook sees
                failed = output is None and raised()[1] is not handled
                if mode.marks and not failed:
                    row_and_marks(module, start, output, FORWARD, entered)
                else:
                    row(module, start, output, FORWARD | FAILED if failed else FORWARD, entered)
                if mode.spend is not None:
                    mode.spend(clock() - now)
                return
        except Exception as error:  # as above
            report_fault(error)

    for hook in (before, after):
        skip(hook.__code__, with_all_below=True)
    return before, after
