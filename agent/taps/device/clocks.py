"""The clocks of all CUDA devices that the job's modules run on, and which clock times which module.

tap.py makes this once the job uses CUDA.
Invariant: a device on which no module of the job has run is never touched, because an event on it would create a
context there.
"""

from __future__ import annotations

import sys
from collections import deque
from time import sleep
from typing import Any

from ...names.modules import Modules
from ...storage.rows import Stream
from .clock import Begun, DeviceClock
from .cuda import Cuda
from .module_device import NOWHERE, device_of, device_of_optimizer

EVENTS = 8192  # on all devices together: enough for some ten steps of a model with 150 modules
_AT_ONCE = 512  # events created without a pause


class DeviceClocks:
    """on: empty while nothing is recorded.  The job's threads take the times, the agent's thread writes them."""

    def __init__(self, cuda: Cuda, rows: Stream, modules: Modules) -> None:
        self._cuda, self._rows, self._modules = cuda, rows, modules
        self._fresh: deque[Any] = deque()
        self.of_index: dict[int, DeviceClock] = {}  # by device index
        self._by_serial: dict[int, DeviceClock | None] = {}  # None: the module cannot be timed
        modules.dicts_by_serial.append(self._by_serial)
        self.of_serial = self._by_serial.get
        self.on: list[bool] = []
        self._fill()

    def open(self) -> None:
        """A block of sampled steps begins; modules may have moved."""
        self._by_serial.clear()
        self.on[:] = [True]

    # ---- on the job's threads

    def begin(self, module: Any, args: Any, kwargs: Any) -> Begun | None:
        """A call of the module begins."""
        serial = self._modules.serials.get(id(module)) or self._modules.meet(module)
        if serial not in self._by_serial:
            self._by_serial[serial] = self._clock(device_of(self._modules, serial, module, args, kwargs))
        clock = self._by_serial[serial]
        return None if clock is None else clock.begin()

    def begin_here(self) -> Begun | None:
        """Something begins on the current device, or on the only device that modules have run on."""
        clock = self.of_index.get(self._cuda.current_device())
        if clock is None and len(self.of_index) == 1:
            clock = next(iter(self.of_index.values()))
        return None if clock is None else clock.begin()

    def is_of(self, optimizer: Any, begun: Begun) -> bool:
        """Whether the optimizer runs on the device on which this began."""
        serial = self._modules.serials.get(id(optimizer), 0)
        return device_of_optimizer(self._modules, serial, optimizer) == begun[0].index

    def _clock(self, index: int) -> DeviceClock | None:
        if index == NOWHERE:
            return None
        if index not in self.of_index:
            self.of_index[index] = DeviceClock(self._cuda, index, self._fresh, self._rows)
        return self.of_index[index]

    # ---- on the agent's thread

    @property
    def waits(self) -> bool:
        """Whether anything recorded has no row yet."""
        return any(clock.waits for clock in list(self.of_index.values()))

    def tend(self) -> None:
        """Write the rows of what has ended.  Raises what CUDA raises."""
        for clock in list(self.of_index.values()):
            clock.resolve()
        self._fill()

    def _fill(self) -> None:
        """Fill the stock up to EVENTS; events that failed calls lost are replaced."""
        in_clocks = sum(clock.events for clock in list(self.of_index.values()))
        for made in range(EVENTS - in_clocks - len(self._fresh)):
            self._fresh.append(self._cuda.event())
            if made % _AT_ONCE == _AT_ONCE - 1:
                sleep(0.0005)  # creating that many holds the GIL for some 0.5 ms

    def drop(self) -> None:
        """Drop all events, on one of the agent's threads."""
        self.on.clear()
        self._by_serial.clear()
        self._fresh.clear()
        for clock in self.of_index.values():
            clock.drop()

    def keep(self) -> None:
        """In a forked child: keep all events forever, because freeing one there would end the process."""
        ctypes: Any = sys.modules["ctypes"]
        self.on.clear()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.of_index))
