"""The machine once a second: counters of the process, of its host and of its devices, as raw samples.

Lives on the agent's thread.  The one invariant: a sampler that raises is turned off here and named; neither the
agent's thread nor the other samplers see it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol

from ..storage.log import Log
from ..storage.rows import Stream
from . import Absent
from .gpu import Gpu
from .process import Process

_SECOND = 1_000_000_000
# A second that began while the sample of the one before was still late is left out: no rate over a moment.
_LEAST = _SECOND // 2
_LATE_S = 0.001  # a wake-up before the second has begun would be one for nothing


class Sampler(Protocol):
    @property
    def state(self) -> str: ...
    def sample(self) -> None: ...
    def close(self) -> None: ...
    def forget(self) -> None: ...


class SamplerLoop:
    """tick() as often as one likes: it samples once in each whole second of the monotonic clock."""

    def __init__(self, samples: Stream, log: Log, pynvml_path: str | None) -> None:
        self.makers: dict[str, Callable[[], Sampler]] = {
            "process": lambda: Process(samples),
            "gpu": lambda: Gpu(samples, log, pynvml_path),
        }
        self._samplers: dict[str, Sampler] = {}
        self._off: dict[str, str] = {}
        self._last_ns = -_SECOND

    def tick(self) -> float:
        """Seconds until the next whole one."""
        now = perf_counter_ns()
        if now // _SECOND > self._last_ns // _SECOND and now - self._last_ns >= _LEAST:
            self._last_ns = now
            for name in self.makers:
                self._sample(name)
        return (_SECOND - now % _SECOND) / _SECOND + _LATE_S

    def _sample(self, name: str) -> None:
        if name in self._off:
            return
        try:
            if name not in self._samplers:
                self._samplers[name] = self.makers[name]()
            self._samplers[name].sample()
        except Absent as absent:
            self._turn_off(name, str(absent))
        except Exception as error:  # a machine that we do not know: the rest of the agent is of use all the same
            self._turn_off(name, repr(error))

    def _turn_off(self, name: str, why: str) -> None:
        self._off[name] = f"off: {why}"
        sampler = self._samplers.pop(name, None)
        if sampler is not None:
            _let_go(sampler.close)

    def states(self) -> dict[str, str]:
        """on, or off and why, of each sampler.  Any thread."""
        waiting = dict.fromkeys(self.makers, "waiting for its first second")
        return waiting | {name: sampler.state for name, sampler in self._samplers.copy().items()} | self._off

    def close(self) -> None:
        """After the last tick."""
        while self._samplers:
            _let_go(self._samplers.popitem()[1].close)

    def forget(self) -> None:
        """In a forked child: descriptors closed, the driver left to the parent."""
        while self._samplers:
            _let_go(self._samplers.popitem()[1].forget)


def _let_go(of: Callable[[], None]) -> None:
    """What cannot be closed must not keep the rest of the agent from its end."""
    with contextlib.suppress(Exception):
        of()
