"""Describes the failure of a snippet: its exception as Python shows it, without frames of ours.

Used by evaluation.py.  Invariant: no exception is kept, because its traceback holds every frame with its variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from ..job_signals import raised_by_handler
from .interrupt import Cancelled, Interruptible

_TRACEBACK_CHARACTERS = 64 << 10  # the middle of a longer one is left out


def describe_failure(error: BaseException, code: str, filename: str, interruptible: Interruptible) -> dict[str, Any]:
    """The fields error, traceback and cancelled of `done`.  Runs the exception's own __str__, interruptibly."""
    try:
        line, text = interruptible.run(partial(_describe, error, code, filename))
    except BaseException as worse:  # a __str__ that exits or never ends
        if raised_by_handler(worse):
            raise
        line = text = f"{type(error).__name__}: <its text failed with {type(worse).__name__}>"
    return {"error": line, "traceback": text, "cancelled": isinstance(error, Cancelled)}


def _describe(error: BaseException, code: str, filename: str) -> tuple[str, str | None]:
    import traceback

    with _source_in_linecache(code, filename):
        shown = traceback.TracebackException(type(error), error, _without_ours(error.__traceback__))
    _cut_at_ours(shown.stack)
    if isinstance(error, Cancelled):
        stack = "".join(shown.stack.format())
        return "cancelled", f"Traceback (most recent call last):\n{stack}cancelled\n" if stack else None
    lines = list(shown.format_exception_only())
    line = lines[-1 if isinstance(error, SyntaxError) else 0].strip().partition("\n")[0]
    text = "".join(shown.format())
    half = _TRACEBACK_CHARACTERS // 2
    return line, text if len(text) <= _TRACEBACK_CHARACTERS else f"{text[:half]}\n…\n{text[-half:]}"


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return trace


def _cut_at_ours(stack: Any) -> None:
    """Leave out our frames at the end, where an operation between ranks was refused: the kernel's, and those below."""
    agent = _cut_at_ours.__code__.co_filename.rpartition("evals")[0]
    ours = next((at for at, frame in enumerate(stack) if frame.filename.startswith(agent)), None)
    if ours is not None:
        del stack[max(0, ours - 1) :]


@contextmanager
def _source_in_linecache(code: str, filename: str) -> Iterator[None]:
    """Within this context, tracebacks show the snippet's lines."""
    import linecache

    before = linecache.cache.get(filename)
    linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
    try:
        yield
    finally:
        if before is None:
            linecache.cache.pop(filename, None)
        else:
            linecache.cache[filename] = before
