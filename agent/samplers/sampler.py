"""The seam of the samplers: what SamplerLoop calls on each of them.

A new sampler is one file with a class that has these members and one import in registry.py.  Invariant: SamplerLoop
calls a sampler on the agent's thread only, except `state`, which may be read on any thread.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Protocol

from ..storage.log import Log
from ..storage.rows import Stream

FULL = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of an OSError: perhaps not in the next second


class Absent(Exception):
    """There is nothing here to sample; the message says why."""


class Sampler(Protocol):
    """One source of samples."""

    @property
    def name(self) -> str:
        """Its key in the registry and in the facts."""

    @property
    def state(self) -> str:
        """`on`, with what is missing, if anything."""

    def sample(self) -> None:
        """Append one row per counter, all with the same time; none for a counter that cannot be read: NULL."""

    def close(self) -> None:
        """Release everything the sampler holds."""

    def forget(self) -> None:
        """In a forked child: close descriptors, leave the driver to the parent."""


# (samples, log, pynvml_path) -> sampler; raises Absent where there is nothing to sample.
MakeSampler = Callable[[Stream, Log, str | None], Sampler]
