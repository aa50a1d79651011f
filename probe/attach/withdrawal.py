"""An attach that a signal ends takes away first what it has put down.

Used by `delivery`.  Signals that end the command are held back while an attach runs; whatever waits in it looks
whether one has come, and gives up.  The signal takes effect once all is as it was.
"""

from __future__ import annotations

import select
import signal
import time
from types import TracebackType

from ..errors import AttachError

ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_LOOK_S = 0.05


class Withdrawn(Exception):
    """Whoever asked for the attach has given up."""


class Withdrawal:
    """A context manager.  Signals that the caller holds back himself are left to him."""

    def __enter__(self) -> Withdrawal:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)  # here a handler raises, or the process ends
        if isinstance(error, Withdrawn):
            raise AttachError("The attach was interrupted by a signal; it is withdrawn.") from None

    def check(self) -> None:
        """Raises Withdrawn."""
        if signal.sigpending() & (ENDING - self._before):
            raise Withdrawn

    def poll(self, poll: select.poll, deadline: float) -> list[tuple[int, int]]:
        """What is ready; [] at the deadline (monotonic).  Raises Withdrawn."""
        while True:
            self.check()
            left = deadline - time.monotonic()
            if (ready := poll.poll(max(0.0, min(left, _LOOK_S)) * 1e3)) or left <= _LOOK_S:
                return ready
