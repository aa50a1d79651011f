"""The taps on torch, installed and removed together, and the state of each in words: on, or off and why.

Invariant: a tap that raises is turned off and named; the training step never sees the exception.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Iterable, Mapping
from contextlib import suppress

from ...streams import BARE, UNTIMED
from .registry import TAPS
from .tap import Tap, TapContext

NO_TORCH = "off: the process has not imported torch"
_SOON_S = 0.1  # while something on a device has no row yet: a sampled step may use up all events


class TorchTaps:
    """Installs on creation; tend() runs every second on the agent's thread, remove() on any other thread."""

    def __init__(self, context: TapContext) -> None:
        self._context, self.by_name, self._faults = context, context.taps, context.faults
        try:
            for each in TAPS:
                self.by_name[each.name] = each.make(context)
            for tap in self.by_name.values():
                tap.install()
        except BaseException:  # an unknown torch: no tap stays in it
            self._taps = tuple(self.by_name.values())
            for tap in reversed(self._taps):
                with suppress(Exception):
                    tap.remove()
            self.release()
            raise
        self._taps = tuple(self.by_name.values())  # two threads may take the taps out at once: one clears by_name
        # Held while taps are switched; never released again once they are removed.
        self._gate = allocate_lock()
        context.sampling.switch_taps = self._switch

    def _switch(self, flags: int, measured: bool) -> None:
        """Switch all taps for the step that begins; on the training thread, which never waits."""
        if not self._gate.acquire(False):
            return
        try:
            for tap in self._taps:
                is_off = not self._faults.keys().isdisjoint(tap.off_after)
                wanted = flags & ~(BARE | UNTIMED) if tap.ends_steps else flags
                tap.switch(BARE if is_off else wanted, self._context.sampling.spend if measured else None)
        finally:
            self._gate.release()

    def tend(self) -> None:
        """Do what could not be done at once: install hooks that the job was inside, kernels that need a boundary."""
        for tap in self._taps:
            tap.tend()
        self.drain()

    def drain(self) -> None:
        """Write what is known by now to the streams."""
        for tap in self._taps:
            if tap.name not in self._faults:
                tap.drain()

    @property
    def due_s(self) -> float:
        """Seconds until tend() should run again."""
        waits = any(tap.waits for tap in self._taps if tap.name not in self._faults)
        return _SOON_S if waits else 1.0

    def states(self) -> dict[str, str]:
        """The state of each tap: on, or off and why."""
        return states_of(self._taps, self._faults)

    def since_ns(self, name: str) -> int | None:
        """When this tap's recording began, if it began after the attach."""
        return next((tap.since_ns for tap in self._taps if tap.name == name), None)

    def remove(self) -> list[str]:
        """Remove everything; returns what had to stay, in words."""
        self._gate.acquire(True, 1.0)  # for good; another detach may hold it already
        return [left for tap in reversed(self._taps) if (left := tap.remove())]

    def forget(self) -> None:
        """In a forked child: nothing of ours may run, and only this thread exists."""
        self._gate.acquire(False)
        for tap in reversed(self._taps):
            tap.forget()

    def finish(self) -> None:
        """The interpreter is about to end."""
        for tap in self._taps:
            tap.finish()

    def release(self) -> None:
        """Once all taps are removed: leave nothing to the garbage collector."""
        taps, self._taps = self._taps, ()
        self.by_name.clear()
        self._context.sampling.close()
        for tap in taps:
            tap.release()


def states_of(taps: Iterable[Tap], faults: Mapping[str, str]) -> dict[str, str]:
    """The state of each tap that has one; a fault of another tap that switched it off is its reason, too."""
    states = {}
    for tap in taps:
        why = next((faults[each] for each in (tap.name, *tap.off_after) if each in faults), None)
        state = tap.state
        if tap.name in faults or state is not None:
            states[tap.name] = f"off: {why}" if why else str(state)
    return states


def states_without_torch(why: str) -> dict[str, str]:
    """The state of each tap as long as there is no torch to tap."""
    return {tap.name: why for tap in TAPS if not tap.on_demand}
