"""The innermost frames of the other threads.

Invariant: none of our own frames is among them.  A frame with a variable that leads back to itself stays until the
garbage collector runs, and keeps alive everything found beside it: the job's frames and the tensors in them.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from types import FrameType


def frames_of_others() -> dict[int, FrameType]:
    """Thread -> innermost frame, except this thread.  Drop the result soon: it keeps alive what the frames hold."""
    frames = sys._current_frames()
    del frames[get_ident()]
    return frames


_AGENT = f"{__package__.rpartition('.')[0]}."


def is_ours(frame: FrameType) -> bool:
    """Whether the frame runs code of the agent, its taps excepted: what those call is the job's own work."""
    package = str(frame.f_globals.get("__package__"))
    return package.startswith(_AGENT) and not package.startswith(f"{_AGENT}taps")
