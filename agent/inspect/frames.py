"""Frames of the job: the innermost ones of the other threads, and those around a frame.

For code that needs the frames themselves: stacks are read from outside.  Invariant: nothing here keeps a frame.  One
with a variable that leads back to itself stays until the garbage collector runs, and keeps alive everything found
beside it: the job's frames and the tensors in them.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from _thread import get_ident
from collections.abc import Iterator
from contextlib import closing
from types import FrameType
from typing import Any

from .parked_threads import WORD, Memory, api, api_function

_SWITCH_S = 0.0005
_STATE_WORDS = 64  # of a thread's state, in which its number is found


def frames_of_others(rested: bool = False) -> dict[int, FrameType]:
    """Thread -> innermost frame, except this thread.  Drop the result soon: it keeps alive what the frames hold.

    rested: this thread has just slept, and has not waited since.
    """
    frames = sys._current_frames() if _is_only_interpreter() else _frames_of_this_interpreter(rested)
    frames.pop(get_ident(), None)
    return frames


def _is_only_interpreter() -> bool:
    """Since 3.12 another one may run beside this, with its own GIL: sys._current_frames() goes through its frames, too,
    which corrupts memory.  The newest interpreter is at the head of the list."""
    return sys.version_info < (3, 12) or api("PyInterpreterState_Head") == api("PyInterpreterState_Get")


def _frames_of_this_interpreter(rested: bool) -> dict[int, FrameType]:
    """No thread may end on the way: after a switch of threads, none is asked for during a switch interval."""
    from ctypes import c_ulong, c_void_p, py_object

    names = "PyThreadState_GetFrame", "PyThreadState_Next", "Py_DecRef"
    frame_of, next_of, release = map(api_function, names)
    found: dict[int, Any] = {}
    ident_at = _ident_at()
    interpreter = api("PyInterpreterState_Get")
    if not rested:
        time.sleep(_SWITCH_S)
    state = api("PyInterpreterState_ThreadHead", interpreter)
    while state:
        if frame := frame_of(c_void_p(state)):  # else it runs no Python
            found[c_ulong.from_address(state + ident_at).value] = py_object.from_buffer(c_void_p(frame)).value
            release(c_void_p(frame))  # the reference that frame_of() returned
        state = next_of(c_void_p(state))
    return found


@functools.cache
def _ident_at() -> int:
    """How far the number of a thread is from the beginning of its state."""
    with closing(Memory()) as memory:
        return WORD * memory.words(api("PyThreadState_Get"), _STATE_WORDS).index(get_ident())


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
