"""Device time and memory of modules, passes and optimizer steps, once the job uses CUDA.

Then the functions of the other taps are wrapped in functions that record events; a job on the CPU runs none of this.
The tap does not begin as long as device_policy.py forbids it.
Invariant: a time that cannot be taken is missing, and a fault turns off this tap and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from ....streams import BLOCK, DEVICE, MARKS, RETENTION_BYTES, SAMPLED, SPANS, STREAMS
from ...storage.rows import Stream
from ...torch_state import cuda_is_in_use
from ..cuda import Cuda
from ..device_policy import ALL_LEFT_ALONE, are_recorded, why_off
from ..modules.forward import Forward
from ..optimizer import OptimizerStep
from ..tap import Tap, TapContext
from .calls import around_calls, around_steps, marks_on, passes_on
from .clocks import DeviceClocks

_OPEN_NS = 1_000_000_000  # as long as the agent's thread may be away


class Device(Tap):
    """It wraps functions of the taps on modules and optimizers, which are made after it: see tend()."""

    name, on_demand, off_after = "device", True, ("device", "forward", "backward")
    state: str | None = None  # None: the job does not use CUDA

    def __init__(self, context: TapContext, retention_bytes: int = RETENTION_BYTES) -> None:
        self._context, self._retention_bytes = context, retention_bytes
        self._report_fault = context.reporter(self.name)
        self.clocks: DeviceClocks | None = None
        self._opened_ns = 0  # when a block of sampled steps began, to a second

    def install(self) -> None:
        self.tend()
        super().install()

    def tend(self) -> None:
        """Begin once the job uses CUDA; the stream, which takes a file descriptor, is made only then."""
        if self.state is None and not are_recorded():
            self.state = f"off: {why_off() or ALL_LEFT_ALONE}"
        if self.state is not None or not cuda_is_in_use():
            return
        if why := why_off():
            self.state = f"off: {why}"
            return
        try:
            self._begin()
            self.state = "on"
        except Exception as error:  # an unknown torch or driver: the other taps are still useful
            self.state = f"off: {error}"

    def _begin(self) -> None:
        taps, streams = self._context.taps, self._context.streams
        forward, optimizer, backward = taps["forward"], taps["optimizer"], taps["backward"]
        if not isinstance(forward, Forward):
            raise LookupError("this torch's _wrapped_call_impl is not known")
        cuda = Cuda()
        rows = Stream(DEVICE, STREAMS[DEVICE], self._retention_bytes)
        clocks = self.clocks = DeviceClocks(cuda, rows, self._context.modules, self._report_fault)
        engine = passes_on(clocks, streams[SPANS].append, backward.wrap_engine)
        backward.time_with(marks_on(clocks, streams[MARKS], backward.host_writer), engine)
        forward.around = around_calls(clocks)
        if isinstance(optimizer, OptimizerStep):
            optimizer.call_around(around_steps(clocks))
        streams[DEVICE] = rows

    def switch(self, flags: int, spend: Callable[[int], None] | None = None) -> None:
        """Runs before forward is installed.  What was recorded until now is written once the device reaches it."""
        if self.clocks is not None:
            was_on = bool(self.clocks.on)
            self.clocks.switch(bool(flags & SAMPLED), self._context.steps.next_step % BLOCK == 0)
            if self.clocks.on and not was_on and (now := perf_counter_ns()) - self._opened_ns > _OPEN_NS:
                self._opened_ns = now  # a large model would use up all events before the agent's next tick
                self._context.drain_soon()

    def drain(self) -> None:
        """Write the rows of what the device has finished."""
        try:
            if self.clocks is not None:
                self.clocks.tend()
        except Exception as error:  # whatever CUDA raises: the job will run into it by itself
            self._report_fault(error)

    @property
    def waits(self) -> bool:
        clocks = self.clocks
        return clocks is not None and (clocks.waits or perf_counter_ns() - self._opened_ns < _OPEN_NS)

    def remove(self) -> None:
        """Drop all events, on one of the agent's threads, after the other taps have been removed."""
        clocks, self.clocks = self.clocks, None
        if clocks is not None:
            clocks.drop()

    def forget(self) -> None:
        if self.clocks is not None:
            self.clocks.keep()
