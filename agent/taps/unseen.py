"""What taps call while torch.compile is at work: dynamo must not see it, or it compiles, warns and gives up.

The one invariant: dynamo skips what claims to be torch's own module.py, but only that very frame: whatever Python
it calls is looked at anew, so every function on the way must make the same claim.
"""

from __future__ import annotations

import sys
import types
from typing import Any


def unseen(*functions: Any) -> None:
    """Put these functions, and what is defined inside them, under module.py's file name."""
    file_name = sys.modules["torch.nn.modules.module"].__file__
    for function in functions:
        function.__code__ = _renamed(function.__code__, file_name)


def _renamed(code: types.CodeType, file_name: Any) -> types.CodeType:
    inside = (_renamed(each, file_name) if isinstance(each, types.CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=file_name, co_consts=tuple(inside))
