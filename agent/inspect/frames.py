"""Frames of the job: the innermost ones of the other threads, and those around a frame.

For code that needs the frames themselves: stacks are read from outside.  Invariant: nothing here keeps a frame.  One
with a variable that leads back to itself stays until the garbage collector runs, and keeps alive everything found
beside it: the job's frames and the tensors in them.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from collections.abc import Iterator
from types import FrameType
from typing import Any


def frames_of_others() -> dict[int, FrameType]:
    """Thread -> innermost frame, except this thread.  Drop the result soon: it keeps alive what the frames hold."""
    frames = sys._current_frames()
    del frames[get_ident()]
    return frames


def outward(frame: FrameType | None, limit: int = sys.maxsize) -> Iterator[FrameType]:
    """The frame and those around it, innermost first, at most so many."""
    while frame is not None and limit > 0:
        yield frame
        frame, limit = frame.f_back, limit - 1


_AGENT = f"{__package__.rpartition('.')[0]}."


def is_of_agent(frame: FrameType) -> bool:
    """Whether the frame runs code of the agent; the file name of some of it is torch's (taps/dynamo.py)."""
    return str(frame.f_globals.get("__package__")).startswith(_AGENT)


def is_ours(frame: FrameType) -> bool:
    """Likewise, its taps excepted: what those call is the job's own work."""
    return is_of_agent(frame) and not str(frame.f_globals["__package__"]).startswith(f"{_AGENT}taps")


def named(thread: Any, is_main: bool) -> dict[str, Any]:
    """native_id, name and is_main of a thread of threading's, or of None.

    In a forked child, threading still has the parent's id for the main thread.
    """
    native_id = None if thread is None else os.getpid() if is_main else thread.native_id
    return {"native_id": native_id, "name": None if thread is None else thread.name, "is_main": is_main}
