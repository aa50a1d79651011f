"""What went wrong in the taps, in words, and the way out of those it went wrong in.

The one invariant: tell() raises nothing, for it is called inside of a training step, and after clear() by calls under
way: then there is nothing left to take out.
"""

from __future__ import annotations

from collections.abc import Callable

from ..noop import noop


class TapFaults:
    """tell() on any of the job's threads.

    A part of its own between the taps and what holds them: they would point at one another else, and wait for the
    collector, which comes once a quarter of all objects are new.
    """

    def __init__(self) -> None:
        self.of: dict[str, str] = {}  # the first of each tap
        self.ways_out: dict[str, Callable[[], None]] = {}  # a tap without one stays, harmless

    def tell(self, text: str) -> None:
        """`tap: what`; the tap goes out at once."""
        tap = text.partition(":")[0]
        if tap not in self.of:
            self.of[tap] = text
            self.ways_out.get(tap, noop)()

    def clear(self) -> None:
        self.ways_out.clear()
