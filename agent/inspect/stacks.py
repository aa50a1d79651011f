"""The Python stacks of all threads at one moment, as plain values.

Readers request them; they are taken on the agent's thread.  Invariant: no frame outlives the call, so taking stacks
keeps none of the job's objects alive.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from .frames import frames_of_others

_OURS = __name__.partition(".")[0]
_MAX_FRAMES = 200  # frames per thread; of a deeper stack the innermost are kept


def stacks() -> list[dict[str, Any]]:
    """One entry per thread except this one: ident, native_id and name if threading knows the thread, is_main, frames
    (innermost first, without ours, each [file, line, function]) and cut, the number of outer frames left out."""
    threading: Any = sys.modules.get("threading")
    named = dict(threading._active) if threading else {}
    main = threading.main_thread() if threading else None
    return [_thread_entry(ident, frame, named.get(ident), main) for ident, frame in frames_of_others().items()]


def _thread_entry(ident: int, frame: FrameType | None, thread: Any, main: Any) -> dict[str, Any]:
    frames, cut = list[list[Any]](), 0
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == _OURS:
            pass  # one of our kernels or hooks
        elif len(frames) < _MAX_FRAMES:
            code = frame.f_code
            frames.append([code.co_filename, frame.f_lineno or code.co_firstlineno, _name(code)])
        else:
            cut += 1
        frame = frame.f_back
    native_id, name = (None, None) if thread is None else (thread.native_id, thread.name)
    is_main = thread is not None and thread is main
    return {"ident": ident, "native_id": native_id, "name": name, "is_main": is_main, "frames": frames, "cut": cut}


def _name(code: Any) -> str:
    return str(getattr(code, "co_qualname", code.co_name))  # qualified since 3.11
