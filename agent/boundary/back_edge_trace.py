"""Waits for the back edge of the driving loop: a trace of its frame, from the post-hook to the back edge.

boundary.py makes one at each step at which something is to run.  Invariant: the previous trace functions, of the
thread and of each frame, are restored before anything else runs.  Up to 3.12 a trace leaves in a frame a copy of
its locals, which keeps them alive; that copy is emptied at the next call.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from types import CodeType, FrameType, MethodType
from typing import Any

from ..inspect.frame_locals import COPIES, Copies, calls_of_locals
from .driving_loop import is_mark
from .loops import Loop, loops_around

_OPCODES = sys.version_info[:2] != (3, 12)  # there, asking for them once makes all later tracing slow
_SUSPENDS = 0x20 | 0x80 | 0x200  # code flags: generators and coroutines


class _TracedFrame:
    """A frame that is traced: where it stood, and the loops around that instruction, innermost first."""

    def __init__(self, frame: FrameType, loop_number: int | None) -> None:
        self.offset, self.code = frame.f_lasti, frame.f_code
        self.loops: tuple[Loop, ...] = loops_around(frame.f_code, self.offset)
        # The innermost loop that may be the job's.  The outermost is for certain one that drives the job: without it
        # the frame had not seen two steps.
        self.first_candidate = max(0, len(self.loops) - 1) if loop_number is None else loop_number
        self.left = 0  # loops that were left, from the innermost
        self.taken = -1  # the loop whose back edge was taken
        self.moved = False
        self.previous: Any = None if type(frame.f_trace) is BackEdgeTrace else frame.f_trace
        self.opcodes = _OPCODES and any(loop.hidden for loop in self.loops) and not frame.f_trace_opcodes

    @property
    def calls_locals(self) -> bool:
        """Whether the job gets the frame's variables anew before it comes back here: then they are to be the latest."""
        around = self.loops[-1].body if self.loops else range(self.offset, len(self.code.co_code))
        return any(offset in around for offset in calls_of_locals(self.code))

    def takes_back_edge(self, offset: int) -> bool:
        """Whether the next instruction, at this offset, is at the back edge of a loop that may be the job's."""
        self.moved = True
        for number, loop in enumerate(self.loops):
            if number >= self.first_candidate and offset in loop.back_edge:
                self.taken = number
                return True
            if offset not in loop.body:
                self.left = max(self.left, number + 1)
        return False


class BackEdgeTrace:
    """Armed when made, on the training thread; calls `fire` with the loop's frame once, or is over.

    Another thread sets `over`, and `closed` if no mark is to come back either; the next event then ends it.

    `inner` is the code of what that frame called.  `loop_number` says which loop is known to drive the job: 0 the
    innermost around the instruction at which the frame stands, -1 that instruction itself (map() in C), None if
    it is not known yet.  `fire` and `on_error` let nothing escape but what a signal handler of the job has raised.
    """

    def __init__(
        self,
        frame: FrameType,
        inner: CodeType | None,
        loop_number: int | None,
        fire: Callable[[FrameType], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.thread = get_ident()
        self.over = False
        self.closed = False
        self.fire, self._on_error, self._inner = fire, on_error, inner
        self._frame_id, self._code = id(frame), frame.f_code
        self._loop_frame = _TracedFrame(frame, loop_number)
        self._traced: dict[int, _TracedFrame] = {}
        self._copies = Copies()
        self._old = sys.gettrace()
        hide_from_dynamo(BackEdgeTrace._on_call)
        self._trace(frame, self._loop_frame)
        sys.settrace(self._on_call)

    def _trace(self, frame: FrameType, traced: _TracedFrame) -> None:
        self._traced[id(frame)] = traced
        if COPIES and not traced.calls_locals:
            self._copies.expect(frame)
        if traced.opcodes:
            frame.f_trace_opcodes = True
        frame.f_trace = self

    # ---- what the interpreter calls

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The f_trace of traced frames: called at each line and return."""
        dying = event == "return" and not frame.f_code.co_flags & _SUSPENDS
        copies, key = self._copies.place(frame, dying)
        try:
            self._event(frame, event)
        except Exception as error:  # the user's frame is next on the stack
            self.end(frame)
            self._on_error(error)
        finally:
            # Last, with nothing after it that could switch threads: up to 3.12 the interpreter writes this copy back.
            if COPIES:
                copies[key] = frame.f_locals
        return frame.f_trace

    def _on_call(self, frame: FrameType, event: str, arg: Any) -> None:
        """The thread's trace function: called at each call."""
        try:
            if self.over:
                self.end(frame)
            elif frame.f_code is self._inner and self._loop_frame.first_candidate < 0:  # a loop in C calls it again
                caller = frame.f_back
                if caller is not None and self._stands_at_call(caller):
                    self._at_back_edge(caller)
        except Exception as error:  # likewise
            self.end(frame)
            self._on_error(error)
        if frame.f_code.co_freevars or frame.f_code.co_cellvars:
            frame.f_locals  # noqa: B018  # likewise

    def _event(self, frame: FrameType, event: str) -> None:
        traced = self._traced.get(id(frame))
        if self.over or traced is None:
            self.end(frame)
        elif event == "return":
            self._trace_caller(frame)
        elif event != "exception" and traced.takes_back_edge(frame.f_lasti):
            self._at_back_edge(frame)

    # ---- on the way

    def _stands_at_call(self, frame: FrameType) -> bool:
        """Whether this is the loop's frame, at the instruction where it was when this was armed."""
        return (
            id(frame) == self._frame_id
            and frame.f_code is self._code
            and frame.f_lasti == self._loop_frame.offset
            and self._frame_id in self._traced
        )

    def _trace_caller(self, frame: FrameType) -> None:
        """The frame returns or yields: its caller comes next."""
        caller = frame.f_back
        if not frame.f_code.co_flags & _SUSPENDS:
            self._restore(frame)
            del self._traced[id(frame)]
        if caller is None:
            self.end(None)
        elif id(caller) not in self._traced:
            self._trace(caller, _TracedFrame(caller, 0))

    def _at_back_edge(self, frame: FrameType) -> None:
        self.end(frame)
        sys.call_tracing(self.fire, (frame,))  # so that what it runs can be traced and compiled
        if COPIES and self._old is None and sys.gettrace() is None:
            sys.settrace(_Emptying(self._copies))

    def at_same_call(self, frame: FrameType | None, marked: Callable[[FrameType], bool]) -> FrameType | None:
        """The loop's frame if, seen from this one outward, it makes its next call from where it stood.

        Frames between that are `marked` were there in the step: they are still in it.
        """
        while frame is not None and id(frame) != self._frame_id:
            if marked(frame):
                return None
            frame = frame.f_back
        return frame if frame is not None and self._stands_at_call(frame) else None

    def driving_loop(self, frame: FrameType | None) -> tuple[CodeType, int, int] | None:
        """(code, offset, number) of the loop that drives the job as far as this trace can tell, at the next step."""
        traced = self._loop_frame
        if traced.taken >= 0:
            return self._code, traced.offset, traced.taken
        while frame is not None and id(frame) != self._frame_id:
            frame = frame.f_back
        if self.over or frame is None or not self._stands_at_call(frame) or not self._is_traced():
            return None
        number = traced.left if traced.moved else -1  # it never moved on: the loop is in C
        return None if number >= len(traced.loops) else (self._code, traced.offset, number)

    # ---- the end

    def end(self, frame: FrameType | None) -> None:
        """Restore everything, from this frame outward; on the traced thread."""
        self.over = True
        if self._is_traced():
            sys.settrace(self._old)
        while frame is not None:
            self._restore(frame)
            frame = frame.f_back

    def _is_traced(self) -> bool:
        """Is it this that the thread calls?  The method is not kept: it and this would hold each other."""
        now = sys.gettrace()
        return type(now) is MethodType and now.__self__ is self

    def empty_copies(self) -> None:
        """Outside any trace function only: the interpreter would write an empty copy back."""
        self._copies.empty()

    def _restore(self, frame: FrameType) -> None:
        if frame.f_trace is self:
            traced = self._traced.get(id(frame))
            previous = None if traced is None else traced.previous
            frame.f_trace = None if self.closed and is_mark(previous) else previous
            if traced is not None and traced.opcodes:
                frame.f_trace_opcodes = False


class _Emptying:
    """A trace function until the next call of anything else: the trace before is then through with its copies."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        again = self._copies.leave(frame)  # a generator that goes on: its copy will be written back now
        self._copies.empty()
        if not again and sys.gettrace() is self:
            sys.settrace(None)
        if again:
            self._copies.take(frame)
        elif frame.f_code.co_freevars or frame.f_code.co_cellvars:
            frame.f_locals  # noqa: B018  # as above


def in_a_trace(code: CodeType) -> bool:
    """Has the interpreter still to write a copy of a frame's locals back when this code is through?"""
    return code in (BackEdgeTrace.__call__.__code__, BackEdgeTrace._on_call.__code__, _Emptying.__call__.__code__)


def hide_from_dynamo(at_call: Any) -> None:
    """Give a function that traces each call the file name of one of torch's that dynamo skips: a call may be compiled
    code's."""
    module = sys.modules.get("torch.nn.modules.module")
    file = getattr(module, "__file__", None)
    if file is not None and at_call.__code__.co_filename != file:
        at_call.__code__ = at_call.__code__.replace(co_filename=file)
