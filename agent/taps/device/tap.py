"""Device time and memory of modules, passes and optimizer steps, once the job uses CUDA.

Then the functions of the other taps are wrapped in functions that record events; a job on the CPU runs none of this.
The tap does not begin as long as untested_devices.py forbids it.
Invariant: a time that cannot be taken is missing, and a fault turns off this tap and nothing else.
"""

from __future__ import annotations

from typing import Any

from ....streams import DEVICE, MARKS, RETENTION_BYTES, SPANS, STREAMS
from ...names.modules import Modules
from ...storage.rows import Stream
from ...torch_state import cuda_is_in_use
from ..modules.backward import Backward
from ..modules.forward import Forward
from ..optimizer import OptimizerStep
from ..tap_faults import ReportFault
from ..untested_devices import why_off
from .calls import around_calls, around_steps, marks_on, passes_on
from .clocks import DeviceClocks
from .cuda import Cuda


class Device:
    """look() and tend() run on the agent's thread; open() and close() on any, when forward is installed and removed."""

    def __init__(
        self,
        streams: dict[str, Stream],
        modules: Modules,
        forward: Any,
        backward: Backward,
        optimizer: Any,
        report_fault: ReportFault,
        retention_bytes: int = RETENTION_BYTES,
    ) -> None:
        self._streams, self._modules, self._retention_bytes = streams, modules, retention_bytes
        self._forward, self._backward, self._optimizer = forward, backward, optimizer
        self._report_fault = report_fault
        self.clocks: DeviceClocks | None = None
        self.state: str | None = None  # None: the job does not use CUDA

    def look(self) -> None:
        """Begin once the job uses CUDA; the stream, which takes a file descriptor, is made only then."""
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
        if not isinstance(self._forward, Forward):
            raise LookupError("this torch's _wrapped_call_impl is not known")
        cuda, streams, backward = Cuda(), self._streams, self._backward
        rows = Stream(DEVICE, STREAMS[DEVICE], self._retention_bytes)
        clocks = self.clocks = DeviceClocks(cuda, rows, self._modules)
        engine = passes_on(clocks, streams[SPANS].append, backward.wrap_engine, self._report_fault)
        backward.mark_with(marks_on(clocks, streams[MARKS], backward.host_writer, self._report_fault))
        backward.time_passes_with(engine)
        self._forward.around = around_calls(clocks, self._report_fault)
        if isinstance(self._optimizer, OptimizerStep):
            self._optimizer.call_around(around_steps(clocks, self._report_fault))
        streams[DEVICE] = rows

    def open(self) -> None:
        """A block of sampled steps begins.  Call it before forward is installed."""
        if self.clocks is not None:
            self.clocks.open()

    def close(self) -> None:
        """Record nothing from here on; what was recorded is written once the device reaches it.  Any thread."""
        if self.clocks is not None:
            self.clocks.on.clear()

    def tend(self) -> None:
        """Write the rows of what the device has finished."""
        try:
            if self.clocks is not None:
                self.clocks.tend()
        except Exception as error:  # whatever CUDA raises: the job will run into it by itself
            self._report_fault(error)

    @property
    def waits(self) -> bool:
        """Whether rows will soon be ready to write."""
        return self.clocks is not None and self.clocks.waits

    def remove(self) -> None:
        """Drop all events.  Runs on one of the agent's threads, after the other taps have been removed."""
        clocks, self.clocks = self.clocks, None
        if clocks is not None:
            clocks.drop()

    def forget(self) -> None:
        """In a forked child."""
        if self.clocks is not None:
            self.clocks.keep()
