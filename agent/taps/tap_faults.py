"""The first fault of each tap, in words, and how to take the tap out.

Invariant: what reporter() returns never raises, because it is called inside a training step.  Calls under way may
still call it after clear(): nothing is left to take out then.
"""

from __future__ import annotations

from collections.abc import Callable

from ..noop import noop

ReportFault = Callable[[Exception], None]  # raises nothing


class TapFaults:
    """Each tap gets a reporter(), which it may call on any of the job's threads.

    This is an object of its own, between the taps and what holds them.  Otherwise they would reference one another and
    wait for the garbage collector, which comes only once a quarter of all objects are new.
    """

    def __init__(self) -> None:
        self.by_tap: dict[str, str] = {}  # the first fault of each tap
        self.ways_out: dict[str, Callable[[], None]] = {}  # removes a tap; a tap without an entry stays, harmless

    def reporter(self, tap: str) -> ReportFault:
        """The function with which this tap reports a fault of its own; the first report takes the tap out at once."""

        def report_fault(error: Exception) -> None:
            if tap not in self.by_tap:
                self.by_tap[tap] = f"{tap}: {error!r}"
                self.ways_out.get(tap, noop)()

        return report_fault

    def clear(self) -> None:
        self.ways_out.clear()
