"""Ends a snippet at the next line of its own code, after a call that has to come to its end.

Used by gates.py, on the snippet's thread.  Invariant: the thread's trace function is as before once the snippet ends.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ..boundary.back_edge_trace import hide_from_dynamo
from ..inspect.call_around import snippet_outside
from .interrupt import Cancelled


class NextLine:
    """end_there() while the snippet is in a call, as often as one likes; remove() once it has ended."""

    def __init__(self) -> None:
        self._before: Any = None
        self._traces = False

    def end_there(self, frame: FrameType) -> None:
        """Raise Cancelled at the next line of this frame of the snippet, which is in a call."""
        if not self._traces:
            self._before, self._traces = sys.gettrace(), True
        hide_from_dynamo(_at_call)
        frame.f_trace = _at_line
        sys.settrace(_at_call)

    def remove(self) -> None:
        if self._traces:
            sys.settrace(self._before)
            self._before, self._traces = None, False


def _at_call(frame: FrameType, event: str, arg: Any) -> None:
    """Nothing else is traced."""
    if frame.f_code.co_freevars or frame.f_code.co_cellvars:
        frame.f_locals  # noqa: B018  # up to 3.12 the interpreter writes this copy back: it must be up to date


def _at_line(frame: FrameType, event: str, arg: Any) -> Any:
    if event == "line":
        raise Cancelled
    if event == "return" and (outer := snippet_outside(frame)) is not None:
        outer.f_trace = _at_line
    return _at_line
