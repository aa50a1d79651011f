"""Values of the job that no table has: what rules read of its models and optimizers, once a finding is there.

Called by rules.  Invariant: an expression changes nothing, and what cannot be read is None.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from ..watched import Watched

# Every name of the training loop's frame, and every attribute of the objects that keep the rest in a trainer.
_NAMES = (
    "[*globals().items(), *((f'{n}.{k}', v) for n in ('self', 'trainer') "
    "for k, v in getattr(globals().get(n), '__dict__', {}).items())]"
)
OPTIMIZERS = f"[(n, v) for n, v in {_NAMES} if issubclass(type(v), __import__('torch').optim.Optimizer)]"
# All that there are, in a tenth of a second: to make sure that none is overlooked.
ALL_OPTIMIZERS = (
    "[('', v) for v in __import__('gc').get_objects() if issubclass(type(v), __import__('torch').optim.Optimizer)]"
)


_READABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*|\[\d+\])*")  # a variable, its attribute or item


def is_readable(root: str) -> bool:
    """Whether the name of a model is an expression: a class name with a number after it is none."""
    return _READABLE.fullmatch(root) is not None


def value(watched: Watched, expression: str) -> Any:
    """What it is in the job, if that is a number, a text, or a collection of such; else None."""
    shown = watched.read(expression)
    try:
        return None if shown is None else ast.literal_eval(shown)
    except (ValueError, SyntaxError):
        return None
