"""Which frame's loop drives the job: the innermost one that lives through two steps of the anchor optimizer.

Asked by boundary.py in the optimizer's post-hook.  The one invariant: no frame is held between two steps, for its
locals would live on with it; a frame is known again by an inert mark in its f_trace, which dies with it.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any


def _new_mark() -> object:
    """A callable for f_trace that takes any three arguments, does nothing and returns None.

    It is one of C, so that when somebody traces, no Python code runs between the copy that the interpreter then
    makes of a frame's locals and its writing back, and dynamo sees no function of ours.
    """
    return memoryview(b"").__exit__


def is_mark(trace: object) -> bool:
    return type(getattr(trace, "__self__", None)) is memoryview


class DrivingLoop:
    """find() and mark() at each of two steps in a row; unmark() when nothing is asked any more."""

    def __init__(self) -> None:
        self._mark: Any = _new_mark()
        self._taken: set[tuple[int, CodeType]] = set()  # frames in whose f_trace a debugger or coverage stands
        self._code: CodeType | None = None  # of the loop found last

    def find(self, frame: FrameType | None) -> FrameType | None:
        """The driving loop's frame, outward from this one; None if this is the first step that is looked at.

        Without marks of the step before, the innermost frame that runs the function found last.
        """
        same_function = None
        while frame is not None:
            if self.marked(frame):
                self._code = frame.f_code
                return frame
            if same_function is None and frame.f_code is self._code:
                same_function = frame
            frame = frame.f_back
        return same_function

    def marked(self, frame: FrameType) -> bool:
        """Has it been there at the last mark()?"""
        trace = frame.f_trace
        return trace is self._mark or (trace is not None and (id(frame), frame.f_code) in self._taken)

    def mark(self, frame: FrameType | None) -> None:
        """Mark this frame and all outward."""
        self._taken.clear()
        while frame is not None:
            if frame.f_trace is None:
                frame.f_trace = self._mark
            elif frame.f_trace is not self._mark:
                self._taken.add((id(frame), frame.f_code))
            frame = frame.f_back

    def unmark(self, frame: FrameType | None) -> None:
        """Take the marks from this frame and all outward; any thread."""
        self._taken.clear()
        while frame is not None:
            if frame.f_trace is self._mark:
                frame.f_trace = None
            frame = frame.f_back
