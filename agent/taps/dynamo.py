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
    return function


def skip(code: CodeType, with_all_below: bool = False) -> None:
    """Have dynamo run this code as it is, under whatever file name; before torch 2.6 it then still sees all below."""
    frames: Any = sys.modules["torch"]._C._dynamo.eval_frame
    action = getattr(frames, "_FrameAction", None)
    if action is not None:
        below = action.SKIP if with_all_below else action.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, below))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)
