"""Whether an operation between ranks is a part of a call into torch that has to come to its end.

The recorder asks it for operations of evals.  Invariant: frames are looked at, never kept.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

# Functions whose purpose is the operation: a snippet may end in front of what they do.
_OPERATIONS = tuple(
    os.path.join("distributed", name)
    for name in ("distributed_c10d.py", "c10d_logger.py", "_functional_collectives.py", "nn/functional.py")
)


def call_around(frame: FrameType | None, snippet: str) -> FrameType | None:
    """The frame of the snippet, if torch's own code stands between it and this frame, which issues an operation: a
    module's forward, a backward pass, an optimizer's step, the writing of a checkpoint.

    snippet: the file name of its code.
    """
    torch: Any = sys.modules["torch"]
    library = os.path.join(os.path.dirname(torch.__file__), "")
    ours = str(__package__).partition(".taps")[0]
    while frame is not None and str(frame.f_globals.get("__package__")).startswith(ours):
        frame = frame.f_back  # before torch 2.6 the kernel is wrapped
    inside = False
    while frame is not None and frame.f_code.co_filename != snippet:
        name = frame.f_code.co_filename
        inside = inside or (name.startswith(library) and not name.endswith(_OPERATIONS))
        frame = frame.f_back
    return frame if inside else None
