"""The Python stacks of all threads at one moment, as plain values.

Asked by a reader, on the agent's thread.  The one invariant: no frame outlives the call, so nothing of the job's is
kept alive by a look at it.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from .frames import frames_of_others

_OURS = __name__.partition(".")[0]
_DEEPEST = 200  # frames of one thread; of a deeper one the innermost


def stacks() -> list[dict[str, Any]]:
    """One entry a thread but this one: ident, native_id and name where threading knows it, is_main, and frames,
    innermost first and without ours, each [file, line, function]; cut: how many outer frames were left out."""
    threading: Any = sys.modules.get("threading")
    named = dict(threading._active) if threading else {}
    main = threading.main_thread() if threading else None
    return [_of_thread(ident, frame, named.get(ident), main) for ident, frame in frames_of_others().items()]


def _of_thread(ident: int, frame: FrameType | None, thread: Any, main: Any) -> dict[str, Any]:
    frames, cut = list[list[Any]](), 0
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == _OURS:
            pass  # a kernel or a hook of ours in between
        elif len(frames) < _DEEPEST:
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
