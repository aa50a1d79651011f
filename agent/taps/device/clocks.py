"""The clocks of all CUDA devices that the job's modules run on, and which clock times which module.

tap.py makes this once the job uses CUDA.
Invariant: a device on which no module of the job has run, and no graph, is never touched, because an event on it would
create a context there.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import deque
from time import sleep
from typing import Any

from ....streams import OPTIMIZER
from ...names.modules import Modules
from ...storage.rows import Stream
from ..cuda import Cuda
from ..modules.autograd_nodes import tensors_in
from ..tap import ReportFault
from .clock import Begun, DeviceClock

EVENTS = 8192  # of each device: enough for some ten steps of a model with 150 modules
_AT_ONCE = 512  # events created without a pause
_MAX_SEARCHED = 256  # modules searched for a tensor
_SEVERAL = -1


class Started(int):
    """A start time on the host, with the device time that began then."""

    begun: Begun


def started(start_ns: int, begun: Begun | None) -> int:
    if begun is None:
        return start_ns
    both = Started(start_ns)
    both.begun = begun
    return both


class DeviceClocks:
    """on: empty while nothing is recorded.  The job's threads take the times, the agent's thread writes them."""

    def __init__(self, cuda: Cuda, rows: Stream, modules: Modules, report_fault: ReportFault) -> None:
        self._cuda, self._rows, self._modules, self.report_fault = cuda, rows, modules, report_fault
        self._ident = get_ident
        self._fresh: deque[Any] = deque()
        self._devices: set[int] = set()  # that have one of these clocks
        self.of_index: dict[int, DeviceClock] = {}  # by device index
        self._by_serial: dict[int, DeviceClock | None] = {}  # None: the module cannot be timed
        modules.dicts_by_serial.append(self._by_serial)
        self.of_serial = self._by_serial.get
        self.on: list[bool] = []
        self._only_device: int | None = None  # that has a context; None: not looked for in this block
        self._reads_memory = True  # until the first optimizer step after switch() says so
        self._fill()

    def switch(self, wanted: bool, begins_block: bool) -> None:
        """Record or do not.  At the beginning of a block of sampled steps modules may have moved, and the allocator's
        counters, which take longer than all else, are read for one step."""
        if wanted:
            self._by_serial.clear()
            self._only_device = None
            self._reads_memory = begins_block
        self.on[:] = [True] if wanted else []

    # ---- on the job's threads, inside a call, a pass or a step of the user: no exception may escape

    def begin(self, module: Any, args: Any, kwargs: Any) -> Begun | None:
        """A call of the module begins; None if it cannot be timed."""
        try:
            serial = self._modules.serials.get(id(module)) or self._modules.meet(module)
            if serial not in self._by_serial:
                self._by_serial[serial] = self._clock_for(serial, module, args, kwargs)
            clock = self._by_serial[serial]
            return None if clock is None else clock.begin(self._reads_memory)
        except Exception as error:
            self.report_fault(error)
            return None

    def begin_here(self) -> Begun | None:
        """Something begins on the current device, or on the only device that modules have run on."""
        try:
            clock = self.of_index.get(self._cuda.current_device())
            if clock is None and len(self.of_index) == 1:
                clock = next(iter(self.of_index.values()))
            return None if clock is None else clock.begin(self._reads_memory)
        except Exception as error:
            self.report_fault(error)
            return None

    def begin_replay(self) -> Begun | None:
        """A graph is replayed, on the device that it was captured on: told only if the process uses no other one."""
        try:
            if self._only_device is None:
                used = [index for index in range(self._cuda.device_count()) if self._cuda.has_context(index)]
                self._only_device = used[0] if len(used) == 1 else _SEVERAL
            return None if self._only_device == _SEVERAL else self._clock(self._only_device).begin(self._reads_memory)
        except Exception as error:
            self.report_fault(error)
            return None

    def end(self, start: int, kind: int, optimizer: Any = None) -> None:
        """What began at this start has ended; a step is timed only if the optimizer runs on the device it began on."""
        try:
            if self.on and type(start) is Started:
                clock = start.begun[0]
                if kind != OPTIMIZER or self._device_of_optimizer(optimizer) == clock.index:
                    clock.end(start.begun, kind, start, self._ident())
                if kind == OPTIMIZER:
                    self._reads_memory = False
        except Exception as error:
            self.report_fault(error)

    def _clock_for(self, serial: int, module: Any, args: Any, kwargs: Any) -> DeviceClock | None:
        """That of the device in the module's latest record, else of its first tensor, else of its first argument."""
        device = self._modules.device(serial)
        if device is None:
            tensor = _first_tensor(module)
            if tensor is None:
                tensor = next(iter(tensors_in((args, kwargs), sys.modules["torch"].Tensor)), None)
            device = getattr(tensor, "device", None)
        index = _index_of(device)
        return None if index is None else self._clock(index)

    def _clock(self, index: int) -> DeviceClock:
        if index not in self.of_index:
            self._devices.add(index)
            self.of_index[index] = DeviceClock(self._cuda, index, self._fresh, self._rows, self._devices, EVENTS)
        return self.of_index[index]

    def _device_of_optimizer(self, optimizer: Any) -> int | None:
        """The device in the optimizer's latest record, else that of its first parameter."""
        device = self._modules.device(self._modules.serials.get(id(optimizer), 0))
        if device is None:
            parameters = (each for group in optimizer.param_groups for each in group["params"])
            device = getattr(next(parameters, None), "device", None)
        return _index_of(device)

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
        """Fill the stock up to EVENTS of each device; events that failed calls lost are replaced."""
        in_clocks = sum(clock.events for clock in list(self.of_index.values()))
        for made in range(EVENTS * max(1, len(self._devices)) - in_clocks - len(self._fresh)):
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


def _index_of(device: Any) -> int | None:
    """The index of a torch.device or its name: 0 for cuda:0 and so on, None for a device that is not CUDA."""
    kind, _, index = str(device).partition(":")
    return int(index or 0) if kind == "cuda" else None


def _first_tensor(module: Any) -> Any:
    waiting = [module]
    for each in waiting:
        for tensor in (*each._parameters.values(), *each._buffers.values()):
            if tensor is not None:
                return tensor
        if len(waiting) < _MAX_SEARCHED:
            waiting += [child for child in each._modules.values() if child is not None]
    return None


_OF_CLOCKS = "begin", "begin_here", "begin_replay", "end", "_clock", "_clock_for", "_device_of_optimizer"

training_thread_code = (
    started,
    tensors_in,
    _index_of,
    _first_tensor,
    *(getattr(DeviceClocks, name) for name in _OF_CLOCKS),
    *(getattr(DeviceClock, name) for name in ("begin", "end", "mark")),
)
