"""What other tools put into a training job: plain hooks that read a clock, and torch.profiler, the peer.

Called in a worker (worker.py), between two steps.  The one invariant: take() leaves the job as it was.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
from array import array
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from ours import BetweenSamples, Everything, WithoutBackward
from torch import nn


class Instrument(Protocol):
    """Put in by being made; `stepped`, where there is one, is called by the job's loop after each step."""

    def take(self) -> int:
        """Out again; how much it has recorded."""


class Hooks:
    """A clock reading before and after each module's forward, and after its backward, by torch's public hooks."""

    def __init__(self) -> None:
        self.readings = array("q")
        read = self._reader()
        self._handles: list[Any] = []
        for module in [each for each in gc.get_objects() if isinstance(each, nn.Module)]:
            self._handles += [
                module.register_forward_pre_hook(read),
                module.register_forward_hook(read),
                module.register_full_backward_hook(read),
            ]

    def _reader(self) -> Callable[..., None]:
        record, clock = self.readings.append, perf_counter_ns

        def read(*_: Any) -> None:
            record(clock())

        return read

    def take(self) -> int:
        for handle in self._handles:
            handle.remove()
        return len(self.readings)


class Profiler:
    """torch.profiler on every step: CPU activities, a trace of eight steps after one to warm up, thrown away."""

    def __init__(self) -> None:
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=8, repeat=0)
        activities = [torch.profiler.ProfilerActivity.CPU]
        self._profile = torch.profiler.profile(activities=activities, schedule=schedule)
        self._profile.start()

    def stepped(self) -> None:
        self._profile.step()

    def take(self) -> int:
        self._profile.stop()
        return int(self._profile.step_num)


class Capture:
    """torch.profiler over the steps until it is taken out, CPU activities, and its trace written: a capture by hand."""

    def __init__(self) -> None:
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self._profile.start()

    def take(self) -> int:
        self._profile.stop()
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            self._profile.export_chrome_trace(file.name)
            return os.path.getsize(file.name)


class Peer:
    """`probing`, which was in the process from its start: every call of every module, turned on by its `configure`.

    The environment alone (PROBING_TORCH_PROFILING) does nothing in 0.2.4: torch's import is not noticed, and
    "random:1.0" is a syntax error to its settings.  It installs its hooks when an optimizer that it does not know has
    stepped, learns the modules' names in the step after that, and records from then on.
    """

    def __init__(self) -> None:
        import probing.ext.torch as switch  # only in a worker that was started with it
        from probing.profiling.torch_probe import configure

        self._switch = switch
        self._rows_before = _rows_of_peer()
        switch.hooks.clear()
        configure("random")  # each call with probability 1.0

    def take(self) -> int:
        self._switch.deinit()
        for optimizer in self._switch.hooks:
            self._switch.hooks[optimizer] = None  # known, and not to be hooked
        return _rows_of_peer() - self._rows_before


def _rows_of_peer() -> int:
    """Rows that the peer holds of this process's modules; 0 before its first."""
    from probing import _core

    answer = json.loads(_core.query_json("select count(*) as rows from python.torch_trace")) or {"cols": []}
    return sum(count for column in answer["cols"] for counts in column.values() for count in counts)


INSTRUMENTS: dict[str, Callable[[], Instrument]] = {
    "everything": Everything,
    "without backward": WithoutBackward,
    "between samples": BetweenSamples,
    "hooks": Hooks,
    "profiler": Profiler,
    "capture": Capture,
    "peer": Peer,
}
