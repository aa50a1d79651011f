"""The taps on torch in this very process, on small rings, and their rows as the reader's own code derives them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from listed_source import listed

from probe.agent.boundary.boundary import Boundary
from probe.agent.job_signals import raised_by_handler
from probe.agent.names.modules import Modules
from probe.agent.steps.sampling import Sampling
from probe.agent.steps.step_count import Steps
from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.agent.taps.device.tap import Device
from probe.agent.taps.graphs import Graphs
from probe.agent.taps.modules.backward import Backward
from probe.agent.taps.modules.forward import Forward
from probe.agent.taps.modules.forward_hooks import ForwardHooks
from probe.agent.taps.optimizer import OptimizerStep
from probe.agent.taps.optimizer_hooks import OptimizerHooks
from probe.agent.taps.tap import TapContext
from probe.arrays.arrow import table_of
from probe.derive.partition import Partition
from probe.host.facts import Facts
from probe.snapshot.log import START
from probe.snapshot.log import Log as ReadersLog
from probe.snapshot.rows import complete
from probe.snapshot.source import Rank
from probe.streams import BARE, MARKS, ON_DEMAND, STEPS, STREAMS
from probe.tables.python.torch_trace import TABLE

SMALL = 1  # bytes: the smallest ring
COLUMNS = tuple(column for column in TABLE.columns if column.name not in ("rank", "host", "pid", "time"))


@dataclass
class Context(TapContext):
    """Collects every fault of every tap, and switches none off."""

    every_fault: list[str] = field(default_factory=list)

    def reporter(self, name: str) -> Callable[[Exception], None]:
        def report_fault(error: Exception) -> None:
            if raised_by_handler(error):  # as in every TapContext
                raise error
            self.every_fault.append(f"{name}: {error!r}")

        return report_fault


@dataclass
class Taps:
    """As TorchTaps makes them, without an agent."""

    streams: dict[str, Stream]
    log: Log
    modules: Modules
    forward: Forward | ForwardHooks
    backward: Backward
    optimizer: OptimizerStep | OptimizerHooks
    device: Device
    graphs: Graphs
    steps: Steps
    faults: list[str]
    boundaries: list[int]

    @classmethod
    def made(
        cls,
        forward_class: Callable[..., Forward | ForwardHooks] = Forward,
        optimizer_class: Callable[..., OptimizerStep | OptimizerHooks] = OptimizerStep,
        stream_bytes: int = SMALL,
    ) -> Taps:
        log, boundaries, sampling = Log(), list[int](), Sampling()
        streams = {name: Stream(name, slots, stream_bytes) for name, slots in STREAMS.items() if name not in ON_DEMAND}
        modules = Modules(log)
        steps = Steps(streams[STEPS], lambda count: boundaries.append(count) or 0, sampling)
        context = Context(streams, log, modules, steps, sampling, Boundary(), lambda thread: None)
        taps = context.taps
        taps["device"] = device = Device(context, stream_bytes)
        taps["optimizer"] = optimizer = optimizer_class(context)
        taps["backward"] = backward = Backward(context)
        taps["graphs"] = graphs = Graphs(context)
        taps["forward"] = forward = forward_class(context)
        faults = context.every_fault
        return cls(streams, log, modules, forward, backward, optimizer, device, graphs, steps, faults, boundaries)

    def install(self) -> None:
        if not self.optimizer.installed:
            self.optimizer.install()
        self.backward.install()
        self.device.install()
        self.graphs.install()
        self.forward.install()

    def remove(self) -> None:
        self.forward.remove()
        self.graphs.remove()
        self.backward.remove()
        self.optimizer.remove()
        self.device.switch(BARE)

    def rows(self, name: str) -> list[dict[str, int]]:
        stream, found = self.streams[name], []
        for _, view in stream.read(1, stream.position(), 4096):
            found += [dict(zip(stream.slots, row, strict=True)) for row in stream.struct.iter_unpack(view)]
            view.release()
        return found

    def serial(self, module: Any) -> int:
        return self.modules.serials[id(module)]

    def marks(self, *modules: Any) -> list[tuple[int, int]]:
        """(index of the module, kind of mark) in time order."""
        index = {self.serial(module): i for i, module in enumerate(modules)}
        return [(index[row["subject"]], row["flags"]) for row in self.rows(MARKS) if row["subject"] in index]

    def raw(self) -> Rank:
        """What a reader would have of this moment; every step may be seen."""
        naming = threading.Thread(target=self.modules.name)  # as the agent's: it looks at the others' variables
        naming.start()
        naming.join()
        self.log.write()
        log = ReadersLog()
        log.feed(bytes(self.log.read(START, self.log.committed)))
        streams = {
            name: {"slots": list(stream.slots), "chunks": stream.chunks} for name, stream in self.streams.items()
        }
        clocks = {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
        facts = Facts.parse({"step_base": self.steps.base, "streams": streams, **clocks})
        raw = Rank(os.getpid(), facts, {name: stream.position() for name, stream in self.streams.items()}, log)
        for stream in STREAMS:
            empty = np.zeros((0, len(raw.slots(stream))), np.int64)
            raw.put(stream, np.concatenate([empty, *self._pieces(stream)]))
        listed({raw: {}}, open_steps=True)
        return raw

    def _pieces(self, name: str) -> list[Any]:
        pieces = list[Any]()
        if name not in self.streams:
            return pieces
        stream = self.streams[name]
        for first, view in stream.read(1, stream.position(), 4096):
            pieces.append(complete(np.frombuffer(bytes(view), "<i8").reshape(-1, len(stream.slots)), first))
            view.release()
        return pieces

    def table(self) -> list[dict[str, Any]]:
        """python.torch_trace of this process, as the reader derives it."""
        assert TABLE.derive is not None
        found: list[dict[str, Any]] = table_of(COLUMNS, TABLE.derive(Partition.of(self.raw()))).to_pylist()
        return found

    def close(self) -> None:
        self.remove()
        self.device.remove()
        for part in (*self.streams.values(), self.log):
            part.close()


@contextmanager
def tapped(*made: Any, **options: Any) -> Iterator[Taps]:
    """Taps (as Taps.made makes them) installed, and taken out again; no tap may have had a fault."""
    taps = Taps.made(*made, **options)
    taps.install()
    try:
        yield taps
    finally:
        taps.close()
    assert taps.faults == []
