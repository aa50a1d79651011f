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

from ..inspect.frame_locals import COPIES, empty, has_slots
from .driving_loop import is_mark
from .loops import Loop, loops_around

_OPCODES = sys.version_info[:2] != (3, 12)  # there, asking for them once makes all later tracing slow
_SUSPENDS = 0x20 | 0x80 | 0x200  # code flags: generators and coroutines


class _Place:
    """A frame that is traced: where it stood, the loops around, the innermost of them that may be the job's."""

    def __init__(self, frame: FrameType, driver: int | None) -> None:
        self.offset = frame.f_lasti
        self.loops: tuple[Loop, ...] = loops_around(frame.f_code, self.offset)
        # The outermost loop drives for certain: without it the frame had not seen two steps.
        self.driver = max(0, len(self.loops) - 1) if driver is None else driver
        self.left = 0  # loops that were left, from the innermost
        self.turned = -1  # the loop whose turn came
        self.moved = False
        self.before: Any = None if type(frame.f_trace) is BackEdgeTrace else frame.f_trace
        self.opcodes = _OPCODES and any(loop.hidden for loop in self.loops) and not frame.f_trace_opcodes

    def turns(self, offset: int) -> bool:
        """Is the instruction that comes next the turn of a loop that may be the job's?"""
        self.moved = True
        for number, loop in enumerate(self.loops):
            if number >= self.driver and offset in loop.turns:
                self.turned = number
                return True
            if offset not in loop.body:
                self.left = max(self.left, number + 1)
        return False


class BackEdgeTrace:
    """Armed when made, on the training thread; calls `fire` with the loop's frame once, or is over.

    Another thread sets `over`, and `closed` if no mark is to come back either; the next event then ends it.

    `inner` is the code of what that frame called.  `driver` numbers the loop that is known to drive: 0 the
    innermost around the instruction at which the frame stands, -1 that instruction itself (map() in C), None if
    it is not known yet.  `fire` and `trouble` let nothing escape.
    """

    def __init__(
        self,
        frame: FrameType,
        inner: CodeType | None,
        driver: int | None,
        fire: Callable[[FrameType], None],
        trouble: Callable[[Exception], None],
    ) -> None:
        self.thread = get_ident()
        self.over = False
        self.closed = False
        self.fire, self._trouble, self._inner = fire, trouble, inner
        self._frame_id, self._code = id(frame), frame.f_code
        self._first = _Place(frame, driver)
        self._places: dict[int, _Place] = {}
        self._copies: dict[int, Any] = {}
        self._old = sys.gettrace()
        _hide_from_dynamo()
        self._trace(frame, self._first)
        sys.settrace(self._called)

    def _trace(self, frame: FrameType, place: _Place) -> None:
        self._places[id(frame)] = place
        if place.opcodes:
            frame.f_trace_opcodes = True
        frame.f_trace = self

    # ---- what the interpreter calls

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The f_trace of traced frames: called at each line and return."""
        dying = event == "return" and not frame.f_code.co_flags & _SUSPENDS
        copies = self._copies if has_slots(frame) and not dying else {}
        try:
            self._met(frame, event)
        except Exception as error:  # the user's frame is next on the stack
            self._trouble(error)
            self.end(frame)
        finally:
            # Last, with nothing after it that could switch threads: up to 3.12 the interpreter writes this copy back.
            copies[id(frame)] = frame.f_locals
        return frame.f_trace

    def _called(self, frame: FrameType, event: str, arg: Any) -> None:
        """The thread's trace function: called at each call."""
        try:
            if self.over:
                self.end(frame)
            elif frame.f_code is self._inner and self._first.driver < 0:
                self._called_again(frame)
        except Exception as error:  # likewise
            self._trouble(error)
            self.end(frame)
        if frame.f_code.co_freevars or frame.f_code.co_cellvars:
            frame.f_locals  # noqa: B018  # likewise

    def _met(self, frame: FrameType, event: str) -> None:
        place = self._places.get(id(frame))
        if self.over or place is None:
            self.end(frame)
        elif event == "return":
            self._follow(frame)
        elif event != "exception" and place.turns(frame.f_lasti):
            self._turned(frame)

    def _called_again(self, frame: FrameType) -> None:
        caller = frame.f_back
        if caller is not None and self._stands(caller):
            self._turned(caller)

    # ---- on the way

    def _stands(self, frame: FrameType) -> bool:
        """Whether this is the loop's frame, at the instruction where it was when this was armed."""
        return (
            id(frame) == self._frame_id
            and frame.f_code is self._code
            and frame.f_lasti == self._first.offset
            and self._frame_id in self._places
        )

    def _follow(self, frame: FrameType) -> None:
        """The frame returns or yields: follow its caller."""
        caller = frame.f_back
        if not frame.f_code.co_flags & _SUSPENDS:
            self._restore(frame)
            del self._places[id(frame)]
        if caller is None:
            self.end(None)
        elif id(caller) not in self._places:
            self._trace(caller, _Place(caller, 0))

    def _turned(self, frame: FrameType) -> None:
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
        return frame if frame is not None and self._stands(frame) else None

    def drives(self, frame: FrameType | None) -> tuple[CodeType, int, int] | None:
        """(code, offset, number) of the loop that drives as far as this trace can tell, seen at the next step."""
        first = self._first
        if first.turned >= 0:
            return self._code, first.offset, first.turned
        while frame is not None and id(frame) != self._frame_id:
            frame = frame.f_back
        if self.over or frame is None or not self._stands(frame) or not self._is_traced():
            return None
        number = first.left if first.moved else -1  # it never moved on: the loop is in C
        return None if number >= len(first.loops) else (self._code, first.offset, number)

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
        empty(self._copies)

    def _restore(self, frame: FrameType) -> None:
        if frame.f_trace is self:
            place = self._places.get(id(frame))
            before = None if place is None else place.before
            frame.f_trace = None if self.closed and is_mark(before) else before
            if place is not None and place.opcodes:
                frame.f_trace_opcodes = False


class _Emptying:
    """A trace function until the next call of anything else: the trace before is then through with its copies."""

    def __init__(self, copies: dict[int, Any]) -> None:
        self._copies = copies

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        again = self._copies.pop(id(frame), None)  # a generator that goes on: its copy will be written back now
        empty(self._copies)
        if again is None and sys.gettrace() is self:
            sys.settrace(None)
        if again is not None:
            self._copies[id(frame)] = frame.f_locals
        elif frame.f_code.co_freevars or frame.f_code.co_cellvars:
            frame.f_locals  # noqa: B018  # as above


def in_a_trace(code: CodeType) -> bool:
    """Has the interpreter still to write a copy of a frame's locals back when this code is through?"""
    return code in (BackEdgeTrace.__call__.__code__, BackEdgeTrace._called.__code__, _Emptying.__call__.__code__)


def _hide_from_dynamo() -> None:
    """Give what runs at each call the file name of one of torch's that dynamo skips: a call may be compiled code's."""
    module = sys.modules.get("torch.nn.modules.module")
    file = getattr(module, "__file__", None)
    if file is not None and BackEdgeTrace._called.__code__.co_filename != file:
        BackEdgeTrace._called.__code__ = BackEdgeTrace._called.__code__.replace(co_filename=file)
