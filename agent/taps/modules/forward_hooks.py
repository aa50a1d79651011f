"""Module calls by torch's own global hooks: where the code of nn.Module._wrapped_call_impl is not the one known.

Records the same spans and marks as forward.py at some four times its cost.  What it cannot see: arguments given by
keyword, the samples of a batch, a call that ends in a BaseException that is no Exception, and compiled regions, which
are not marked as such; dynamo guards the dicts of hooks, so what was compiled before they are put in may be compiled
anew, once.  The one invariant: torch walks these dicts in the midst of a call, so they change only while no other
thread can run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ....streams import FAILED, FORWARD
from ...inspect.exclusive import exclusively
from ...storage.rows import Stream
from ..dynamo import skip
from ..tap_faults import ReportFault
from .backward import Backward
from .module_calls import mark_before, row_after, row_and_marks_after

_DEEPEST = 1000  # calls under way on a thread; what is below was left by an exception that we did not see


class ForwardHooks:
    """In use for Forward: install() and remove() from any thread, as often as one likes."""

    state = "on: hooks, this torch's _wrapped_call_impl is not known"

    def __init__(self, spans: Stream, backward: Backward, report_fault: ReportFault) -> None:
        self._module_py = sys.modules["torch.nn.modules.module"]
        self._mode = _Mode()
        self._before, self._after = _hooks(self._mode, spans, backward, report_fault)
        self._handles: list[Any] = []

    @property
    def installed(self) -> bool:
        return bool(self._handles)

    def install(self, marks: bool = True, spent: Callable[[int], None] | None = None) -> None:
        """As Forward's."""
        self._mode.marks, self._mode.spent = marks, spent

        def put() -> None:
            self._handles = [
                self._module_py.register_module_forward_pre_hook(self._before),
                self._module_py.register_module_forward_hook(self._after, always_call=True),
            ]

        if not self._handles:
            exclusively(put, self._is_hook)

    def remove(self) -> None:
        def take() -> None:
            while self._handles:
                self._handles.pop().remove()

        if self._handles and not exclusively(take, self._is_hook):
            take()

    def _is_hook(self, code: Any) -> bool:
        return code is self._before.__code__ or code is self._after.__code__


class _Mode:
    """What the hooks are to do."""

    marks = True
    spent: Callable[[int], None] | None = None


def _hooks(
    mode: _Mode, spans: Stream, backward: Backward, report_fault: ReportFault
) -> tuple[Callable[..., None], Callable[..., None]]:
    clock, ident, raised = perf_counter_ns, sys.modules["_thread"].get_ident, sys.exc_info
    mark, row, row_and_marks = mark_before(backward), row_after(spans, backward), row_and_marks_after(spans, backward)
    is_compiling = sys.modules["torch"].compiler.is_compiling
    under_way: dict[int, list[tuple[int, int, int, Any]]] = {}  # thread -> its calls: id, start, number, exception

    def before(module: Any, args: Any) -> None:
        if is_compiling():  # the compiler reads this, and leaves all of the hook out
            return
        try:
            calls = under_way.setdefault(ident(), [])
            del calls[:-_DEEPEST]
            asked = clock()
            entered = mark(module, args, {}) if mode.marks else 0
            start = clock()
            calls.append((id(module), start, entered, raised()[1]))
            if mode.spent is not None:
                mode.spent(start - asked)
        except Exception as error:  # inside a user's forward: nothing may escape
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
                    continue  # it ended in an exception that no hook is told of
                failed = output is None and raised()[1] is not handled
                if mode.marks and not failed:
                    row_and_marks(module, start, output, FORWARD, entered)
                else:
                    row(module, start, output, FORWARD | FAILED if failed else FORWARD, entered)
                if mode.spent is not None:
                    mode.spent(clock() - now)
                return
        except Exception as error:  # likewise
            report_fault(error)

    for hook in (before, after):
        skip(hook.__code__, with_all_below=True)
    return before, after
