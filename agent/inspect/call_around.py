"""Whether a snippet is in a call into torch that has to come to its end.

The tap of collectives asks it for an operation between ranks, evals.py before it interrupts.  Invariant: frames are
looked at, never kept.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from .frames import is_of_agent

# Functions whose purpose is the operation: a snippet may end in front of what they do.
_OPERATIONS = tuple(
    os.path.join("distributed", name)
    for name in ("distributed_c10d.py", "c10d_logger.py", "_functional_collectives.py", "nn/functional.py")
)


def call_around(frame: FrameType | None, snippet: str) -> FrameType | None:
    """The frame of the snippet, if torch's own code stands between it and this frame: a module's forward, a backward
    pass, an optimizer's step, the writing of a checkpoint.

    snippet: the file name of its code.
    """
    torch: Any = sys.modules["torch"]
    library = os.path.join(os.path.dirname(torch.__file__), "")
    while frame is not None and is_of_agent(frame):
        frame = frame.f_back  # before torch 2.6 the kernel is wrapped
    inside = False
    while frame is not None and frame.f_code.co_filename != snippet:
        name = frame.f_code.co_filename
        inside = inside or (name.startswith(library) and not name.endswith(_OPERATIONS))
        frame = frame.f_back
    return frame if inside else None


def snippet_outside(frame: FrameType) -> FrameType | None:
    """The frame of the same snippet that this one will return to, None for its outermost.

    Behind that one stands ours, which runs it, and then the job, whose file may have the snippet's name.
    """
    outer = frame.f_back
    while outer is not None and not is_of_agent(outer):
        if outer.f_code.co_filename == frame.f_code.co_filename:
            return outer
        outer = outer.f_back
    return None
