"""The tap on collectives: puts the recorder's kernels in and takes them out, at a boundary between two steps, or where
a module call begins if the job makes no steps.

Invariant: no thread waits for a boundary but the one that removes the taps.
"""

from __future__ import annotations

import time
from types import FrameType

from .... import protocol as wire
from ....streams import COLLECTIVES, SPANS
from ...boundary.boundary import Ticket
from ...torch_state import is_distributed
from ..device_policy import why_off
from ..modules.forward import Forward
from ..tap import Tap, TapContext
from .recorder import CollectiveRecorder

_PATIENCE_S = 3.0  # how long to wait for a boundary at which the kernels can be removed
_CALLBACKS_S = 10.0  # for operations that are in flight as the interpreter ends; gloo's own end waits for them, too


class Collectives(Tap):
    """tend() asks for the boundary; kernels are not switched with the steps, because each switch needs a boundary."""

    name = "collectives"

    def __init__(self, context: TapContext) -> None:
        streams = context.streams
        self._recorder = CollectiveRecorder(streams[COLLECTIVES], streams[SPANS], context.log, context.current_eval)
        self._boundary, self._steps = context.boundary, context.steps
        self._taps, self._calls_end_steps = context.taps, context.calls_end_steps
        self._installing: Ticket | None = None

    @property
    def state(self) -> str | None:
        if why := self._recorder.why_off or (why_off() if is_distributed() else ""):
            return f"off: {why}"
        if self._recorder.installed:
            return "on"
        return "waiting for a boundary between two steps" if is_distributed() else wire.NO_GROUP

    @property
    def since_ns(self) -> int | None:
        return self._recorder.since_ns

    def tend(self) -> None:
        if self._installing is None and not self._recorder.installed and is_distributed():
            self._installing = self._boundary.request(lambda frame: self._recorder.install())
        elif self._installing is not None and not self._installing.outcome:
            self._at_next_call(self._installing)

    def _at_next_call(self, ticket: Ticket) -> None:
        forward = self._taps.get("forward")
        if self._calls_end_steps() and isinstance(forward, Forward):
            forward.at_next_call(ticket)

    def _is_over(self, ticket: Ticket) -> bool:
        """True if it will never run; False if it runs or has run.  Nothing waits for it any longer."""
        is_over = ticket.cancel()
        forward = self._taps.get("forward")
        if isinstance(forward, Forward):
            forward.withdraw(ticket)
        return is_over

    def drain(self) -> None:
        if self._recorder.installed:
            self._recorder.drain()

    def finish(self) -> None:
        self._recorder.finish(_CALLBACKS_S)

    def remove(self) -> str | None:
        self._settle_installing()
        if self._recorder.installed and not self._remove_at_boundary():
            return "kernels on c10d that only pass collectives on stay: no boundary between two steps came in time"
        return None

    def _settle_installing(self) -> None:
        """Wait for kernels that are being installed right now; none are installed after this."""
        if self._installing is None or self._is_over(self._installing):
            return
        end = time.monotonic() + _PATIENCE_S
        while not self._recorder.installed and not self._recorder.why_off and time.monotonic() < end:
            time.sleep(0.002)

    def _remove_at_boundary(self) -> bool:
        """Remove the kernels at the next boundary, or the one after if a thread is in a kernel; False if none came."""
        recorder = self._recorder
        recorder.pass_through()
        end = time.monotonic() + max(_PATIENCE_S, 4 * (self._steps.typical_ns() or 0) / 1e9)

        def remove(frame: FrameType) -> None:
            recorder.remove()

        while recorder.installed and time.monotonic() < end:
            ticket = self._boundary.request(remove)
            self._at_next_call(ticket)
            while ticket.outcome != "run" and time.monotonic() < end:
                time.sleep(0.002)
            if not self._is_over(ticket):
                time.sleep(0.03)  # it is running: installing and removing take some milliseconds
        return not recorder.installed

    def forget(self) -> None:
        self._recorder.forked()

    def release(self) -> None:
        self._installing = None
        self._recorder.release()
