"""Samples the machine once a second: counters of the process, its host and its devices.

Lives on the agent's thread.  Invariant: a sampler that raises is turned off here and named, unless the job has reached
a limit, when it leaves out a second; neither the agent's thread nor the other samplers see the exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from time import perf_counter_ns

from ..fault import in_words
from ..storage.log import Log
from ..storage.rows import Stream
from .registry import SAMPLERS
from .sampler import FULL, Absent, MakeSampler, Sampler

_SECOND_NS = 1_000_000_000
# If the last sample came late, the next second begins too soon after it and is left out: no rate over a moment.
_SHORTEST_INTERVAL_NS = _SECOND_NS // 2
_LATE_S = 0.001  # waking before the second has begun would be useless


class SamplerLoop:
    """tick() may be called at any rate: it samples once in each whole second of the monotonic clock."""

    def __init__(
        self, samples: Stream, log: Log, pynvml_path: str | None, registry: Mapping[str, MakeSampler] = SAMPLERS
    ) -> None:
        self._registry = registry
        self._arguments = samples, log, pynvml_path
        self._samplers: dict[str, Sampler] = {}
        self._off: dict[str, str] = {}
        self._last_ns = -_SECOND_NS

    def tick(self) -> float:
        """Sample if a new second has begun.  Returns the seconds until the next one."""
        now = perf_counter_ns()
        if now // _SECOND_NS > self._last_ns // _SECOND_NS and now - self._last_ns >= _SHORTEST_INTERVAL_NS:
            self._last_ns = now
            for name in self._registry:
                self._sample(name)
        return (_SECOND_NS - now % _SECOND_NS) / _SECOND_NS + _LATE_S

    def _sample(self, name: str) -> None:
        if name in self._off:
            return
        try:
            if name not in self._samplers:
                self._samplers[name] = self._registry[name](*self._arguments)
            self._samplers[name].sample()
        except Absent as absent:
            self._turn_off(name, str(absent))
        except Exception as error:  # an unknown kind of machine: the rest of the agent is still useful
            if getattr(error, "errno", None) not in FULL:
                self._turn_off(name, in_words(error))

    def _turn_off(self, name: str, why: str) -> None:
        self._off[name] = f"off: {why}"
        sampler = self._samplers.pop(name, None)
        if sampler is not None:
            _release(sampler.close)

    def states(self) -> dict[str, str]:
        """The state of each sampler: on, or off and why.  Any thread."""
        waiting = dict.fromkeys(self._registry, "waiting for its first second")
        return waiting | {name: sampler.state for name, sampler in self._samplers.copy().items()} | self._off

    def close(self) -> None:
        """After the last tick."""
        while self._samplers:
            _release(self._samplers.popitem()[1].close)

    def forget(self) -> None:
        """In a forked child: close descriptors, leave the driver to the parent."""
        while self._samplers:
            _release(self._samplers.popitem()[1].forget)


def _release(release: Callable[[], None]) -> None:
    """A sampler that cannot be closed must not keep the rest of the agent from ending."""
    with contextlib.suppress(Exception):
        release()
