"""Models that nap on a played device, which takes longer than the host for everything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from naps import MS, Clock, Naps, napping
from played_cuda import PlayedCuda, played_cuda
from tapped import Taps, tapped

TIMES = 3  # what a nap on the host takes on the device
BEHIND_NS = 1000 * MS  # what the device has to do when the test begins


@contextmanager
def on_a_device(**options: Any) -> Iterator[tuple[PlayedCuda, Taps]]:
    """Every nap issues a kernel that takes longer: the device falls behind and is never idle."""
    nap = Naps.nap

    def launching(self: Naps, module: Any, stage: str, ms: float) -> None:
        nap(self, module, stage, ms)
        played.launch(module, stage, int(TIMES * ms * MS))

    clock = Clock()
    with (
        napping(clock),
        played_cuda(clock) as played,
        patch.object(Naps, "nap", launching),
        tapped(**options) as taps,
    ):
        played.busy_until = clock.now + BEHIND_NS
        yield played, taps
