"""The taps on torch, installed and removed together, and the state of each in words: on, or off and why.

Invariant: a tap that raises is turned off here and named; the training step never sees the exception.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType

from ... import protocol as wire
from ...streams import BARE, COLLECTIVES, LOADS, MARKS, SAMPLED, SPANS, UNTIMED
from ..boundary.boundary import Boundary, Ticket
from ..evals.evaluation import Evaluation
from ..names.modules import Modules
from ..steps.sampling import Sampling
from ..steps.step_count import Steps
from ..storage.log import Log
from ..storage.rows import Stream
from ..torch_state import is_distributed
from .collectives.tap import Collectives
from .device.tap import Device
from .loader import Loader
from .modules.backward import Backward
from .modules.forward import forward_tap
from .optimizer import optimizer_tap
from .tap_faults import TapFaults
from .untested_devices import why_off

TAPS = ("forward", "backward", "optimizer", "collectives", "loader")
NO_TORCH = "off: the process has not imported torch"
_SOON_S = 0.1  # while something on a device has no row yet: a sampled step may use up all events
_PATIENCE_S = 3.0  # how long to wait for a boundary at which the kernels on c10d can be removed


class TorchTaps:
    """Installs on creation; tend() runs every second on the agent's thread, remove() on any other thread."""

    def __init__(
        self,
        streams: dict[str, Stream],
        log: Log,
        modules: Modules,
        steps: Steps,
        sampling: Sampling,
        boundary: Boundary,
        current_eval: Callable[[int], Evaluation | None],
    ) -> None:
        spans = streams[SPANS]
        self._boundary, self._steps, self._sampling = boundary, steps, sampling
        faults = self._faults = TapFaults()
        report_forward_fault = faults.reporter("forward")
        self.backward = Backward(streams[MARKS], spans, modules, faults.reporter("backward"), report_forward_fault)
        self.forward = forward_tap(spans, self.backward, report_forward_fault)
        self.optimizer = optimizer_tap(spans, modules, steps, faults.reporter("optimizer"))
        parts = modules, self.forward, self.backward, self.optimizer
        self.device = Device(streams, *parts, faults.reporter("device"))
        self.loader = Loader(streams[LOADS], modules, boundary, faults.reporter("loader"))
        steps.samples = self.backward.samples
        self.collectives = Collectives(streams[COLLECTIVES], spans, log, current_eval)
        forward, loader, device = self.forward.remove, self.loader.remove, self.device.close
        faults.ways_out.update(forward=forward, backward=forward, loader=loader, device=device)
        self._installing: Ticket | None = None  # for the kernels on c10d
        self.device.look()  # first: it takes a while, and a step that began meanwhile would be seen by some taps only
        self.device.open()
        self.optimizer.install()
        self.backward.install()
        self.loader.install()
        self.forward.install()
        self._untapped = 0  # which of BARE and UNTIMED hold now
        # Held while taps are opened or closed; never released again once they are removed.
        self._gate = sys.modules["_thread"].allocate_lock()
        sampling.gate = self._open_or_close

    def _open_or_close(self, flags: int, measured: bool) -> None:
        """Open or close taps for the step that begins; on the training thread, which never waits."""
        if not self._gate.acquire(False):
            return
        try:
            if flags & (BARE | UNTIMED) != self._untapped:
                self._untapped = flags & (BARE | UNTIMED)
                self.backward.time_passes(not self._untapped)
                self.optimizer.time_steps(not self._untapped)
                self._time_loads(not flags & BARE)
            if flags & SAMPLED and not {"forward", "backward"} & self._faults.by_tap.keys():
                if "device" not in self._faults.by_tap:
                    self.device.open()
                self.forward.install(self._sampling.backward, self._sampling.spend if measured else None)
            else:
                self.forward.remove()
                self.device.close()
        finally:
            self._gate.release()

    def _time_loads(self, wanted: bool) -> None:
        if wanted and "loader" not in self._faults.by_tap:
            self.loader.install()
        else:
            self.loader.remove()

    def release(self) -> None:
        """Once all taps are removed: leave nothing to the garbage collector.  Faults of calls under way are ignored."""
        self._faults.clear()
        self._sampling.close()
        self._installing = None
        self.backward.release()
        self.collectives.release()

    def tend(self) -> None:
        """Do what could not be done at once: install hooks that the job was inside, kernels that need a boundary."""
        if not self.optimizer.installed:
            self.optimizer.install(patience_s=0.01)
        self.backward.stock()
        self.device.look()
        if self._installing is None and not self.collectives.installed and is_distributed():
            self._installing = self._boundary.request(lambda frame: self.collectives.install())
        self.drain()

    def drain(self) -> None:
        """Write what is known by now to the streams."""
        if self.collectives.installed:
            self.collectives.drain()
        if "device" not in self._faults.by_tap:
            self.device.tend()

    @property
    def due_s(self) -> float:
        """Seconds until tend() should run again."""
        return _SOON_S if self.device.waits and "device" not in self._faults.by_tap else 1.0

    def states(self) -> dict[str, str]:
        """The state of each tap: on, or off and why."""
        waiting = "waiting for a boundary between two steps" if is_distributed() else wire.NO_GROUP
        marked = "on" if self._sampling.backward else "off: set backward=off"
        states = {
            "forward": self.forward.state,
            "backward": self.backward.why_not or marked,
            "optimizer": self.optimizer.state
            if self.optimizer.installed
            else "waiting for the job to leave optimizer.step",
            "collectives": "on" if self.collectives.installed else waiting,
            "loader": self.loader.why_not or "on",
        }
        if self.device.state is not None:
            states["device"] = self.device.state
        why_not = self.collectives.why_not or (why_off() if is_distributed() else "")
        if why_not:
            states["collectives"] = f"off: {why_not}"
        return states | {tap: f"off: {why}" for tap, why in self._faults.by_tap.items()}

    def remove(self) -> list[str]:
        """Remove everything; returns what had to stay, in words."""
        self._gate.acquire(True, 1.0)  # for good; another detach may hold it already
        self.forward.remove()
        self.backward.remove()
        self.loader.remove()
        left = []
        self._settle_installing()
        if self.collectives.installed and not self._remove_collectives():
            left.append("pass-through kernels on c10d: no boundary between two steps came in time")
        if not self.optimizer.remove():
            left.append("inert optimizer hooks: the job stands inside optimizer.step")
        self.device.remove()
        return left

    def _settle_installing(self) -> None:
        """Wait for kernels that are being installed right now; none are installed after this."""
        if self._installing is None or self._installing.cancel():
            return
        end = time.monotonic() + _PATIENCE_S
        while not self.collectives.installed and not self.collectives.why_not and time.monotonic() < end:
            time.sleep(0.002)

    def _remove_collectives(self) -> bool:
        """Remove the kernels at the next boundary, or the one after if a thread is in a kernel; False if none came."""
        self.collectives.pass_through()
        end = time.monotonic() + max(_PATIENCE_S, 4 * (self._steps.typical_ns() or 0) / 1e9)

        def remove(frame: FrameType) -> None:
            self.collectives.remove()

        while self.collectives.installed and time.monotonic() < end:
            ticket = self._boundary.request(remove)
            while ticket.outcome != "run" and time.monotonic() < end:
                time.sleep(0.002)
            if not ticket.cancel():
                time.sleep(0.03)  # it is running: installing and removing take some milliseconds
        return not self.collectives.installed

    def forget(self) -> None:
        """In a forked child: nothing of ours may run, and only this thread exists."""
        self._gate.acquire(False)
        self.forward.remove()
        self.backward.remove()
        self.loader.remove()
        self.optimizer.forget()
        self.device.forget()
        self.collectives.forked()
