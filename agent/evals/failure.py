"""What is told of a snippet that did not end well: its exception as Python shows it, without a frame of ours.

Used by evaluation.py.  The one invariant: no exception is kept, for its traceback holds every frame and what is in
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from .interrupt import Cancelled, Interruptible

_TEXT = 64 << 10  # characters of a traceback; the middle of a longer one is left out


def told(error: BaseException, code: str, filename: str, interruptible: Interruptible) -> dict[str, Any]:
    """The fields error, traceback and cancelled of `done`.  Runs the exception's own __str__, interruptibly."""
    try:
        line, text = interruptible.run(partial(_described, error, code, filename))
    except BaseException as worse:  # a __str__ that exits or never ends
        line = text = f"{type(error).__name__}: <its text failed with {type(worse).__name__}>"
    return {"error": line, "traceback": text, "cancelled": isinstance(error, Cancelled)}


def _described(error: BaseException, code: str, filename: str) -> tuple[str, str | None]:
    import traceback

    with _source(code, filename):
        shown = traceback.TracebackException(type(error), error, _without_ours(error.__traceback__))
    if isinstance(error, Cancelled):
        stack = "".join(shown.stack.format())
        return "cancelled", f"Traceback (most recent call last):\n{stack}cancelled\n" if stack else None
    lines = list(shown.format_exception_only())
    line = lines[-1 if isinstance(error, SyntaxError) else 0].strip().partition("\n")[0]
    return line, _shortened("".join(shown.format()))


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return trace


@contextmanager
def _source(code: str, filename: str) -> Iterator[None]:
    """While this lasts tracebacks show the snippet's lines."""
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


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]}\n…\n{text[-_TEXT // 2 :]}"
