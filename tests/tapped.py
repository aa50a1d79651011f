"""The taps on torch in the tests' own process, and the rows that they record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from probe.agent.log import Log
from probe.agent.modules import Modules
from probe.agent.rows import Stream
from probe.agent.step import Steps
from probe.agent.taps.backward import Backward
from probe.agent.taps.forward import Forward
from probe.agent.taps.forward_hooks import ForwardHooks
from probe.agent.taps.optimizer import OptimizerStep
from probe.agent.taps.optimizer_hooks import OptimizerHooks
from probe.streams import MARKS, SPANS, STEPS, STREAMS

SMALL = 1  # bytes: the smallest ring


@dataclass
class Taps:
    streams: dict[str, Stream]
    modules: Modules
    forward: Forward | ForwardHooks
    backward: Backward
    optimizer: OptimizerStep | OptimizerHooks
    steps: Steps
    troubles: list[str]
    boundaries: list[int]

    def rows(self, name: str) -> list[dict[str, int]]:
        stream, found = self.streams[name], []
        for _, view in stream.read(1, stream.position(), 4096):
            found += [dict(zip(stream.slots, row, strict=True)) for row in stream.struct.iter_unpack(view)]
            view.release()
        return found

    def install(self) -> None:
        if not self.optimizer.installed:
            self.optimizer.install()
        self.backward.install()
        self.forward.install()

    def remove(self) -> None:
        self.forward.remove()
        self.backward.remove()
        self.optimizer.remove()

    def serial(self, module: Any) -> int:
        return self.modules.serials[id(module)]

    def marks(self, *modules: Any) -> list[tuple[int, int]]:
        """(index of the module, kind of mark) in time order."""
        index = {self.serial(module): i for i, module in enumerate(modules)}
        return [(index[row["subject"]], row["flags"]) for row in self.rows(MARKS) if row["subject"] in index]


@contextmanager
def tapped(
    forward: Callable[..., Forward | ForwardHooks] = Forward,
    optimizer: Callable[..., OptimizerStep | OptimizerHooks] = OptimizerStep,
    stream_bytes: int = SMALL,
) -> Iterator[Taps]:
    """Taps that are in, until the end of the block; no trouble came of them."""
    log, troubles, boundaries = Log(), list[str](), list[int]()
    streams = {name: Stream(name, slots, stream_bytes) for name, slots in STREAMS.items()}
    modules = Modules(log)
    steps = Steps(streams[STEPS], boundaries.append)
    backward = Backward(streams[MARKS], streams[SPANS], modules, troubles.append)
    calls = forward(streams[SPANS], modules, backward, troubles.append)
    stepping = optimizer(streams[SPANS], modules, steps, troubles.append)
    made = Taps(streams, modules, calls, backward, stepping, steps, troubles, boundaries)
    made.install()
    yield made
    made.remove()
    for part in (*streams.values(), log):
        part.close()
    assert troubles == []
