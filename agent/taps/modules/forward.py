"""Module calls: the code of nn.Module._wrapped_call_impl is swapped for code that records when it ran.

This works on modules that already exist and costs nothing once swapped back.  torch.compile skips code that claims to
be in module.py, but traces into it where a module has hooks: there it sees what torch's own code does and no more.
Invariant: what the swapped code calls lives in module.py's globals under _probe_* and is never deleted, only made
inert, because frames in flight still use it.
"""

from __future__ import annotations

import ast
import sys
import types
from _thread import get_ident
from collections.abc import Callable
from functools import lru_cache
from time import perf_counter_ns
from typing import Any

from ....streams import COMPILED, FAILED, FORWARD, SAMPLED, SPANS
from ...boundary.boundary import Ticket
from ...steps.sample_count import SampleCount
from ..dynamo import shielded_from_dynamo, unseen
from ..tap import CurrentEval, ReportFault, Tap, TapContext
from .backward import Backward
from .forward_hooks import ForwardHooks
from .module_calls import After, Before, mark_before, row_after, row_and_marks_after
from .profiler_start import ProfilerStart

_KNOWN = (("self", "args", "kwargs"), ("_compiled_call_impl", "_call_impl"))
_SOURCE = """
def _wrapped_call_impl(self, *args, **kwargs):
    if _probe_compiling():
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        return self._call_impl(*args, **kwargs)
    if _probe_waiting:
        _probe_count(self, args, kwargs)
    _probe_entered = _probe_before(self, args, kwargs)
    _probe_start = _probe_clock()
    try:
{}
    except BaseException:
        _probe_failed(self, _probe_start)
        raise
    _probe_after(self, _probe_start, _probe_output, _probe_flags, _probe_entered)
    return _probe_output
"""
_CALL = f"""
        if self._compiled_call_impl is not None:
            _probe_output, _probe_flags = self._compiled_call_impl(*args, **kwargs), {FORWARD | COMPILED}
        else:
            _probe_output, _probe_flags = self._call_impl(*args, **kwargs), {FORWARD}
"""
_CALL_OF_ORIGINAL = f"""
        _probe_flags = {FORWARD} if self._compiled_call_impl is None else {FORWARD | COMPILED}
        _probe_output = _probe_original(self, *args, **kwargs)
"""


class Forward(Tap):
    """switch() runs on any thread, any number of times; frames in flight are not disturbed."""

    name, off_after, fallback = "forward", ("forward", "backward"), ForwardHooks

    def __init__(self, context: TapContext) -> None:
        """Raises LookupError if torch's code is not known."""
        backward: Backward = context.taps["backward"]
        spans, self._sampling = context.streams[SPANS], context.sampling
        self._module_py = sys.modules["torch.nn.modules.module"]
        self._target: Any = self._module_py.Module._wrapped_call_impl
        self._original: types.CodeType = self._target.__code__
        if not is_known(self._original):
            raise LookupError("nn.Module._wrapped_call_impl is not the known one")
        original = types.FunctionType(self._original, self._module_py.__dict__)
        compiling = {"_probe_compiling": _is_compiling(sys.modules["torch"].compiler), "_probe_original": original}
        counting = compiling | _counting(context.steps.samples, context.current_eval, context.reporter(self.name))
        row = row_after(spans, backward)
        self._run_due: Callable[..., Any] = _running(self, context.current_eval, context.reporter(self.name))
        self.marking = counting | _globals(mark_before(backward), row_and_marks_after(spans, backward), row)
        self._unmarked = counting | _globals(_nothing, row, row)
        self._code, self._code_around = (_compiled(self._original, call) for call in (_CALL, _CALL_OF_ORIGINAL))
        self.around: Callable[[dict[str, Any]], dict[str, Any]] = lambda functions: functions  # the device tap's
        self.installed = False
        self._in_use = self._inert = _INERT | compiling
        self._due: list[Ticket] = []
        self._profiler_start = ProfilerStart(self._put)

    def install(self) -> None:
        super().install()
        self._profiler_start.install()

    def remove(self) -> str | None:
        self._profiler_start.remove()
        return super().remove()

    def at_next_call(self, ticket: Ticket) -> None:
        """Also run this ticket of the boundary at the next module call, for a job that makes no steps.  Any thread, and
        also once the tap is switched off; repeat it, for switch() forgets it."""
        if ticket not in self._due:
            self._due.append(ticket)
        self._module_py.__dict__.update(self._in_use | {"_probe_waiting": self._due, "_probe_count": self._run_due})
        self._put(ours=True)

    def withdraw(self, ticket: Ticket) -> None:
        """It is over, or no longer wanted."""
        if ticket in self._due:
            self._due.remove(ticket)
        if not self._due:
            self._put_back()

    def _put_back(self) -> None:
        self._module_py.__dict__.update(self._in_use)
        self._put(ours=True)

    def _put(self, ours: bool) -> None:
        """Our code, if it is wanted, or torch's, whatever is; while a profiler of torch's runs, which tells calls of
        modules by torch's code, ours calls that."""
        code = self._original
        if ours and (self.installed or self._due):
            code = self._code_around if self._profiler_start.runs else self._code
        if self._target.__code__ is not code:  # else every call would have to be specialized anew
            self._target.__code__ = code

    def release(self) -> None:
        self._run_due = _nothing
        self._profiler_start.release()

    def switch(self, flags: int, spend: Callable[[int], None] | None = None) -> None:
        if flags & SAMPLED:
            chosen = self.around(self.marking if self._sampling.backward else self._unmarked)
            self._in_use = chosen if spend is None else _timed(chosen, spend)
            self._module_py.__dict__.update(self._in_use)
            self.installed = True
            self._put(ours=True)
        elif self.installed:
            self.installed, self._in_use = False, self._inert
            self._target.__code__ = self._original
            self._module_py.__dict__.update(self._inert)


def is_known(code: types.CodeType) -> bool:
    """Whether this is a `_wrapped_call_impl` that our code can replace."""
    return (code.co_varnames, code.co_names) == _KNOWN


@lru_cache(maxsize=2)  # the process's next agent reuses both
def _compiled(original: types.CodeType, call: str) -> types.CodeType:
    """Our code under the original's file name, every instruction on its last line: `return self._call_impl(…)`."""
    last = max(line for _, _, line in original.co_lines() if line is not None)
    tree = ast.parse(_SOURCE.format(call))
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            line = original.co_firstlineno if isinstance(node, ast.FunctionDef) else last
            node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
    made = compile(tree, original.co_filename, "exec", dont_inherit=True)
    return next(constant for constant in made.co_consts if isinstance(constant, types.CodeType))


def _is_compiling(compiler: Any) -> Any:
    """What dynamo takes for true where it traces, so that it drops the rest; each call of what it made compares it."""
    return getattr(compiler, "is_dynamo_compiling", None) or getattr(compiler, "is_compiling", _nothing)


def _globals(before: Before, after: After, row: After) -> dict[str, Any]:
    """The globals that the swapped code calls."""

    def failed(module: Any, start: int) -> None:
        row(module, start, None, FORWARD | FAILED, 0)

    unseen(_nothing)
    return {
        "_probe_clock": perf_counter_ns,
        "_probe_before": before,
        "_probe_after": after,
        "_probe_failed": shielded_from_dynamo(failed),
    }


def _counting(samples: SampleCount, current_eval: CurrentEval, report_fault: ReportFault) -> dict[str, Any]:
    """The globals that count samples; only the first call of a micro step finds the list non-empty."""

    def count(module: Any, args: Any, kwargs: Any) -> None:
        try:
            if current_eval(get_ident()) is None:
                samples.count(module, args, kwargs)
        except Exception as error:  # inside a user's forward: no exception may escape
            report_fault(error)

    return {"_probe_waiting": samples.waiting, "_probe_count": shielded_from_dynamo(count)}


def _running(tap: Forward, current_eval: CurrentEval, report_fault: ReportFault) -> Callable[..., None]:
    """What a module call begins with while tickets are due."""

    def run(*_: Any) -> None:
        try:
            if current_eval(get_ident()) is None:
                for ticket in list(tap._due):
                    if ticket.claim("run"):
                        ticket.run(sys._getframe())
                    tap.withdraw(ticket)
        except Exception as error:  # inside a user's forward: no exception may escape
            report_fault(error)

    running: Callable[..., None] = shielded_from_dynamo(run)
    return running


def _timed(chosen: dict[str, Any], spend: Callable[[int], None]) -> dict[str, Any]:
    """The same globals, with a clock around before and after."""
    clock = perf_counter_ns

    def timed(piece: Callable[..., Any]) -> Any:
        def measured(*args: Any) -> Any:
            start = clock()
            result = piece(*args)
            spend(clock() - start)
            return result

        return shielded_from_dynamo(measured)

    return chosen | {name: timed(chosen[name]) for name in ("_probe_before", "_probe_after")}


def _nothing(*_: Any) -> int:
    """What frames in flight call once the taps are removed; 0 is a valid autograd number."""
    return 0


_INERT: dict[str, Any] = {
    **dict.fromkeys(("_probe_before", "_probe_after", "_probe_failed", "_probe_count"), _nothing),
    "_probe_clock": perf_counter_ns,
    "_probe_waiting": (),
}
