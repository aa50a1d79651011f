"""The taps of an agent: TorchTaps makes one of each, installs them in this order and removes them in reverse.

device comes first: looking for devices takes a while, a step that began meanwhile would be seen by some taps only, and
its events may be dropped only once no other tap records any.  forward comes last: it uses backward, and what it calls
must be in place.
"""

from __future__ import annotations

from .collectives.tap import Collectives
from .device.tap import Device
from .graphs import Graphs
from .loader import Loader
from .modules.backward import Backward
from .modules.forward import Forward
from .optimizer import OptimizerStep
from .tap import Tap

TAPS: tuple[type[Tap], ...] = (
    Device,
    OptimizerStep,
    Collectives,
    Loader,
    Graphs,
    Backward,
    Forward,
)
