"""Where the other threads stand.

The one invariant: no frame of ours is among them.  A frame with a variable that leads to itself stays until the
collector comes, and with it all that was found beside it: the job's frames, and in these its tensors.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from types import FrameType


def frames_of_others() -> dict[int, FrameType]:
    """Thread -> its innermost frame, of all threads but this one; to be dropped soon, for it keeps what they hold."""
    frames = sys._current_frames()
    del frames[get_ident()]
    return frames
