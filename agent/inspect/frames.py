"""Frames of the job: the innermost ones of the other threads, those around a frame, and all stacks as plain values.

Invariant: none of our own frames is among those of the others, and no frame outlives stacks().  A frame with a variable
that leads back to itself stays until the garbage collector runs, and keeps alive everything found beside it: the job's
frames and the tensors in them.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from collections.abc import Iterator
from types import FrameType
from typing import Any

_OURS = __name__.partition(".")[0]
_MAX_FRAMES = 200  # frames per thread of a stack; of a deeper one the innermost are kept


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


def stacks() -> list[dict[str, Any]]:
    """One entry per thread except this one: ident, native_id and name if threading knows the thread, is_main, frames
    (innermost first, without ours, each [file, line, function]) and cut, the number of outer frames left out."""
    threading: Any = sys.modules.get("threading")
    named = dict(threading._active) if threading else {}
    main = threading.main_thread() if threading else None
    entries = [_thread_entry(ident, frame, named.get(ident), main) for ident, frame in frames_of_others().items()]
    if threading is None and len(entries) == 1:  # without threading, most programs have one thread
        entries[0].update(native_id=os.getpid(), name="MainThread", is_main=True)
    return entries


def _thread_entry(ident: int, frame: FrameType | None, thread: Any, main: Any) -> dict[str, Any]:
    frames, cut = list[list[Any]](), 0
    for each in outward(frame):
        code = each.f_code
        if str(each.f_globals.get("__name__")).partition(".")[0] == _OURS:
            pass  # one of our kernels or hooks
        elif len(frames) < _MAX_FRAMES:
            function = str(getattr(code, "co_qualname", code.co_name))  # qualified since 3.11
            frames.append([code.co_filename, each.f_lineno or code.co_firstlineno, function])
        else:
            cut += 1
    is_main = thread is not None and thread is main
    return {"ident": ident, **named(thread, is_main), "frames": frames, "cut": cut}


def named(thread: Any, is_main: bool) -> dict[str, Any]:
    """native_id, name and is_main of a thread of threading's, or of None.

    In a forked child, threading still has the parent's id for the main thread.
    """
    native_id = None if thread is None else os.getpid() if is_main else thread.native_id
    return {"native_id": native_id, "name": None if thread is None else thread.name, "is_main": is_main}
