"""The frame whose loop drives the job: the innermost one that lives through two steps of the anchor optimizer.

boundary.py calls this in the optimizer's post-hook.  Invariant: no frame is held between two steps, because its
locals would live on with it; a frame is recognised by an inert mark in its f_trace, which dies with it.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any


def is_mark(trace: object) -> bool:
    return type(getattr(trace, "__self__", None)) is memoryview


class DrivingLoop:
    """Call find() and mark() at each of two steps in a row; unmark() when nothing is requested any more."""

    def __init__(self) -> None:
        # A callable that takes any three arguments, does nothing and returns None.  It is a C function: no Python code
        # runs between the copy that the interpreter makes of a frame's locals while someone traces and the copy's
        # write-back, and dynamo sees no function of ours.
        self._mark: Any = memoryview(b"").__exit__
        self._taken: set[tuple[int, CodeType]] = set()  # frames whose f_trace a debugger or coverage occupies
        self._code: CodeType | None = None  # code of the last loop found

    def find(self, frame: FrameType | None) -> FrameType | None:
        """The driving loop's frame, outward from this one; None at the first step examined.

        Without marks of the previous step: the innermost frame that runs the last function found.
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
        """Whether this frame was on the stack at the last mark()."""
        trace = frame.f_trace
        return trace is self._mark or (trace is not None and (id(frame), frame.f_code) in self._taken)

    def mark(self, frame: FrameType | None) -> None:
        """Mark this frame and all outer ones."""
        self._taken.clear()
        while frame is not None:
            if frame.f_trace is None:
                frame.f_trace = self._mark
            elif frame.f_trace is not self._mark:
                self._taken.add((id(frame), frame.f_code))
            frame = frame.f_back

    def unmark(self, frame: FrameType | None) -> None:
        """Remove the marks from this frame and all outer ones.  Any thread."""
        self._taken.clear()
        while frame is not None:
            if frame.f_trace is self._mark:
                frame.f_trace = None
            frame = frame.f_back
