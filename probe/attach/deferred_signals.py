"""A signal that ends the command takes effect only once what must not be left half done is done.

Used by `delivery`, which removes what an attach has put down, by `evals.attempt`, which lets all ranks begin or end,
and for threads of the command that are to get none.  Such signals are blocked meanwhile; whatever waits in an attach
checks whether one is pending, and gives up.
"""

from __future__ import annotations

import select
import signal
import time

from ..errors import AttachError

ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_LOOK_S = 0.05


class SignalPending(Exception):
    """The user has given up the attach."""


class DeferredSignals:
    """A context manager.  Signals that the caller has blocked are left to the caller."""

    def __enter__(self) -> DeferredSignals:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)  # here a handler raises, or the process ends
        if isinstance(error, SignalPending):
            raise AttachError("A signal interrupted the attach; the request was withdrawn.") from None

    def check(self) -> None:
        """Raises SignalPending."""
        if signal.sigpending() & (ENDING - self._before):
            raise SignalPending

    def poll(self, poll: select.poll, deadline: float) -> list[tuple[int, int]]:
        """What is ready; [] at the deadline (monotonic).  Raises SignalPending."""
        while True:
            self.check()
            left = deadline - time.monotonic()
            if (ready := poll.poll(max(0.0, min(left, _LOOK_S)) * 1e3)) or left <= _LOOK_S:
                return ready
