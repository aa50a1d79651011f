"""The boundary between two iterations: the one place where code may run as if the job's own loop had called it.

Evals and taps make requests; Steps and the loader's tap report from the training thread.  In the optimizer's
post-hook gradients are not yet zeroed and a scaler is in mid-step, so the post-hook only arms a trace.  Requests
run at the driving loop's back edge, or at the entry of its loader if the loop runs in C.  Invariant: whatever
happens here, training goes on as without it, and each request runs once, is cancelled or is missed.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from types import CodeType, FrameType

from ..fault import in_words
from ..inspect.frame_locals import Copies
from ..inspect.frames import frames_of_others
from ..job_signals import raised_by_handler
from ..noop import noop
from .back_edge_trace import BackEdgeTrace
from .driving_loop import DrivingLoop
from .loops import loops_around

_NEVER = 1 << 62
_LOOK_AGAIN_NS = 1_000_000_000  # the greatest age of the known driving loop when a request comes
_KNOWN = 256  # call sites of steps; a job with more is examined again


class Ticket:
    """A request, waiting until its outcome is exactly one of run, cancelled or missed."""

    def __init__(
        self, run: Callable[[FrameType], None], count: int, missed: Callable[[], None], order: str = ""
    ) -> None:
        self.run, self.count, self.missed, self.order = run, count, missed, order
        self.outcome = ""
        self.armed = False
        self._claims = [None]

    def claim(self, outcome: str) -> bool:
        """True for exactly one caller among all threads: the one that decides the outcome."""
        try:
            self._claims.pop()
        except IndexError:
            return False
        self.outcome = outcome
        return True

    def cancel(self) -> bool:
        """True if it will never run; False if it runs or has run."""
        return self.claim("cancelled") or self.outcome in ("cancelled", "missed")


class Boundary:
    """Call request() and close() on any thread; stepped() and loading() on the training thread."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = noop  # has stepped() called at the next step
        self.steps: Callable[[], int] = lambda: self._count  # completed steps, if stepped() is not called at each
        self.at_load: Callable[[], None] = noop  # called at the next batch, which may come long before a boundary
        self.trouble = ""  # our last error, as text
        self._requests: list[Ticket] = []
        self._count = 0
        self._look_at = 0  # up to this count stepped() has nothing to do
        self._looked_ns = 0
        self._learning = False
        self._closed = False
        self._running: int | None = None  # the thread on which requests are running
        self.driving_loop = DrivingLoop()
        self._loop_numbers: dict[tuple[CodeType, int], int] = {}  # where a step is called -> the loop that drives there
        self._trace: BackEdgeTrace | None = None

    def request(
        self, run: Callable[[FrameType], None], count: int = -1, missed: Callable[[], None] = noop, order: str = ""
    ) -> Ticket:
        """Run this once on the training thread at the boundary after `count` steps, -1: the next.

        order: among requests for one boundary.  Two that wait there for other ranks must come in one order on all.
        `run` gets the frame of the driving loop.  If that boundary is past, `missed` is called instead, on the
        thread that notices.  Any thread.
        """
        ticket = Ticket(run, count, missed, order)
        if self._closed:
            ticket.claim("cancelled")
            return ticket
        self._requests.append(ticket)
        self._look_at = 0
        self.wake()
        if 0 <= count <= self.steps() and not ticket.armed and ticket.claim("missed"):
            self._call(missed)
        return ticket

    def stepped(self, count: int) -> int:
        """The anchor's post-hook calls this: `count` steps are complete.  Returns the count of the next call."""
        self._count = count
        if count >= self._look_at:
            self._guarded(self._look)
        return self._look_at

    def loading(self) -> None:
        """The loader tap's wrapper calls this at the entry of a loader's __next__."""
        at_load, trace = self.at_load, self._trace
        if at_load is not noop:
            self._call(at_load)
        if trace is not None and trace.thread == get_ident() and not trace.over:
            self._guarded(partial(self._run_at_loader, trace))

    def close(self) -> None:
        """Stop running requests.  A trace waiting on another thread removes itself at its next event."""
        self._closed = True
        self._look_at = _NEVER
        self.wake, self.at_load, self.steps = noop, noop, lambda: 0
        while self._requests:
            self._requests.pop().claim("cancelled")
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.over = trace.closed = True
            if trace.thread == get_ident():
                trace.end(sys._getframe(1))
        for frame in (*frames_of_others().values(), sys._getframe(1)):
            self.driving_loop.unmark(frame)

    # ---- in the post-hook

    def _guarded(self, work: Callable[[FrameType], None]) -> None:
        frame = sys._getframe(2)
        try:
            work(frame)
        except Exception as error:  # the user's step is next on the stack
            if self._trace is not None:
                self._trace.end(frame)
                self._trace = None
            self._note(error)

    def _note(self, error: Exception) -> None:
        if raised_by_handler(error):
            raise error
        self.trouble = f"boundary: {in_words(error)}"

    def _look(self, frame: FrameType) -> None:
        if self._running is not None or self._closed:
            return  # a step made by code that runs at a boundary is not a boundary
        self._look_at = self._count + 1
        self._end_trace(frame)
        due = self._due()
        loop = self.driving_loop.find(frame)
        if self._requests or not self._learning:
            self.driving_loop.mark(frame)
        else:
            self.driving_loop.unmark(frame)
        if loop is not None and (due or self._learning):
            self._arm(frame, loop, due)
        self._plan()

    def _end_trace(self, frame: FrameType) -> None:
        """The trace armed at the previous step has fired, or its back edge never came."""
        trace, self._trace = self._trace, None
        if trace is None:
            return
        if trace.thread != get_ident():
            trace.over = True  # it removes itself
            return
        found = trace.driving_loop(frame)
        trace.end(frame)
        trace.empty_copies()
        if found is not None:
            code, offset, number = found
            if len(self._loop_numbers) >= _KNOWN:
                self._loop_numbers.clear()
            self._loop_numbers[code, offset] = min(number, self._loop_numbers.get((code, offset), number))

    def _due(self) -> list[Ticket]:
        due = []
        for ticket in list(self._requests):
            if ticket.outcome:
                self._requests.remove(ticket)
            elif 0 <= ticket.count < self._count:
                self._requests.remove(ticket)
                if ticket.claim("missed"):
                    self._call(ticket.missed)
            elif ticket.count in (-1, self._count):
                ticket.armed = True
                due.append(ticket)
        return sorted(due, key=lambda ticket: ticket.order)

    def _arm(self, frame: FrameType, loop: FrameType, due: list[Ticket]) -> None:
        """Wait for the back edge; if nothing is due, only to learn which of several loops drives the job."""
        number = self._loop_numbers.get((loop.f_code, loop.f_lasti))
        if not due and (number is not None or len(loops_around(loop.f_code, loop.f_lasti)) < 2):
            return
        if not due and Copies().expect(loop):  # until the trace has ended, the job's dict would have other values
            return
        self._trace = BackEdgeTrace(loop, _called_from(frame, loop), number, partial(self._run, due), self._note)
        if self._closed:
            self._trace.end(frame)

    def _plan(self) -> None:
        """Plan the next look: at the next step if anything is requested or half learned, else in about a second."""
        now, before = perf_counter_ns(), self._looked_ns
        self._looked_ns = now
        self._learning = not self._learning and not self._requests
        if not self._learning and self._trace is None:
            self._look_at = self._count + max(1, min(4096, _LOOK_AGAIN_NS // max(1, now - before)))
        if self._requests:
            self._look_at = 0
        if self._closed:
            self._look_at = _NEVER

    # ---- at the boundary

    def _run_at_loader(self, trace: BackEdgeTrace, frame: FrameType) -> None:
        loop = trace.at_same_call(frame, self.driving_loop.marked)
        if loop is not None:
            trace.end(frame)
            trace.fire(loop)
            trace.empty_copies()

    def _run(self, due: list[Ticket], frame: FrameType) -> None:
        self._running = get_ident()
        try:
            for ticket in due:
                if not self._closed and ticket.claim("run"):
                    self._call(ticket.run, frame)
        finally:
            self._running = None

    def _call(self, function: Callable[..., None], *args: FrameType) -> None:
        """The requester's function; its error must not reach the user's loop, nor another request."""
        try:
            function(*args)
        except Exception as error:
            self._note(error)


def _called_from(frame: FrameType | None, loop: FrameType) -> CodeType | None:
    """The code of the frame that `loop` called, on the way in to this frame."""
    while frame is not None:
        if frame.f_back is loop:
            return frame.f_code
        frame = frame.f_back
    return None
