"""Hides our functions from torch.compile: dynamo neither compiles them nor traces into what they call.

Each tap uses this for the functions that it runs on the training thread.
Invariant: only a function that calls no user code is shielded together with everything it calls; inside one that does,
dynamo still sees what runs.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any


def unseen(*functions: Any) -> None:
    """Give these functions, and those defined inside them, the file name of module.py."""
    file_name = sys.modules["torch.nn.modules.module"].__file__
    for function in functions:
        function.__code__ = _renamed(function.__code__, file_name)


def _renamed(code: CodeType, file_name: Any) -> CodeType:
    inside = (_renamed(each, file_name) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=file_name, co_consts=tuple(inside))


def shielded_from_dynamo(function: Any) -> Any:
    """The function, which dynamo skips with everything that it calls; none of that may be user code."""
    unseen(function)
    skip(function.__code__, with_all_below=True)
    frames = _frames()
    return function if hasattr(frames, "_FrameAction") else _with_dynamo_off(function, frames.set_eval_frame)


def _with_dynamo_off(function: Any, set_eval_frame: Any) -> Any:
    """Before torch 2.6 only a frame can be skipped, not what it calls: there, dynamo is off during the call."""

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
    """Make dynamo run this code unchanged, whatever its file name; before torch 2.6 it still sees the calls."""
    frames = _frames()
    action = getattr(frames, "_FrameAction", None)
    if action is not None:
        below = action.SKIP if with_all_below else action.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, below))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)


def _frames() -> Any:
    return sys.modules["torch"]._C._dynamo.eval_frame
