"""Tells exceptions that the job's signal handlers raise from all others, where our code would keep one from the job.

A handler runs at whatever bytecode the main thread has reached, so also in a snippet or in a hook of ours.  Invariant:
what it raises there reaches the job: Ctrl-C, or the SIGTERM of a scheduler, is never lost.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any, cast

_VARIABLE_ARGUMENTS = 0x04  # a code flag: it has *args


def raised_by_handler(error: BaseException) -> bool:
    """Whether a signal handler of the job has raised it.  Only for an exception that has just been caught.

    A handler in Python stands in the traceback, called with a signal and a frame.  Python's own for Ctrl-C leaves no
    frame, but its KeyboardInterrupt comes from no `raise` either.  One in C that raises anything else is not found.
    """
    known = handlers()
    innermost, trace = None, error.__traceback__
    while trace is not None:
        if _handles(trace.tb_frame, known.get(trace.tb_frame.f_code, [])):
            return True
        innermost, trace = trace, trace.tb_next
    if innermost is None or type(error) is not KeyboardInterrupt:
        return False
    return _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler and not _stands_at_raise(innermost)


def handlers() -> dict[CodeType, list[int]]:
    """The code of each handler that is written in Python, and its signals."""
    found: dict[CodeType, list[int]] = {}
    for number in range(1, _signal.NSIG):
        function = _function(_signal.getsignal(number))
        if function is not None:
            found.setdefault(function.__code__, []).append(number)
    return found


def _function(handler: Any) -> FunctionType | None:
    """What the interpreter calls, if it is written in Python.  Looks at types alone: isinstance() and getattr() may run
    code of the handler's."""
    for _ in range(8):  # partials of methods of partials …
        kind = type(handler)
        if kind is FunctionType:
            return cast(FunctionType, handler)
        if kind is partial:
            handler = handler.func
        elif kind is MethodType:
            handler = handler.__func__
        else:
            handler = next((vars(each)["__call__"] for each in kind.__mro__ if "__call__" in vars(each)), None)
    return None


def _handles(frame: FrameType, numbers: list[int]) -> bool:
    """Whether the interpreter called this function as the handler of one of these signals."""
    if not numbers:
        return False
    code, variables = frame.f_code, frame.f_locals
    named = code.co_argcount + code.co_kwonlyargcount
    arguments = [variables.get(name) for name in code.co_varnames[:named]]
    if code.co_flags & _VARIABLE_ARGUMENTS and type(others := variables.get(code.co_varnames[named])) is tuple:
        arguments += others
    has_frame = any(type(each) is FrameType for each in arguments)
    return has_frame and any(type(each) is int and each in numbers for each in arguments)


def _stands_at_raise(trace: TracebackType) -> bool:
    from opcode import opmap

    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]
