"""What keeps torch.compile's hands off our functions: it neither compiles them nor looks into what they call.

Asked by each tap for what it puts on the training thread's road.  The one invariant: only a function that calls no
code of the user's is shielded with all that it calls; one that does keeps dynamo's eyes on what runs inside it.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any


def unseen(*functions: Any) -> None:
    """Put these functions, and what is defined inside them, under module.py's file name."""
    file_name = sys.modules["torch.nn.modules.module"].__file__
    for function in functions:
        function.__code__ = _renamed(function.__code__, file_name)


def _renamed(code: CodeType, file_name: Any) -> CodeType:
    inside = (_renamed(each, file_name) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=file_name, co_consts=tuple(inside))


def shielded_from_dynamo(function: Any) -> Any:
    """The function, which dynamo skips with everything that it calls: nothing of it may be the user's."""
    unseen(function)
    skip(function.__code__, with_all_below=True)
    frames = _frames()
    return function if hasattr(frames, "_FrameAction") else _with_its_eyes_shut(function, frames.set_eval_frame)


def _with_its_eyes_shut(function: Any, set_eval_frame: Any) -> Any:
    """Before torch 2.6 only a frame can be skipped, and not what it calls: there dynamo is off meanwhile."""

    def shielded(*args: Any, **kwargs: Any) -> Any:
        callback = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(callback)

    unseen(shielded)
    skip(shielded.__code__)
    return shielded


def skip(code: CodeType, with_all_below: bool = False) -> None:
    """Have dynamo run this code as it is, under whatever file name; before torch 2.6 it then still sees all below."""
    frames = _frames()
    action = getattr(frames, "_FrameAction", None)
    if action is not None:
        below = action.SKIP if with_all_below else action.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, below))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)


def _frames() -> Any:
    return sys.modules["torch"]._C._dynamo.eval_frame
