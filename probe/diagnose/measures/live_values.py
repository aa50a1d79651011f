"""Values of the job that no table has: what rules read of its models and optimizers, once a finding is there.

Called by rules; a recorder reads them without a finding.  In what a rule asks, ROOT stands for a model, FIRST and OTHER
for two of them.  Invariant: an expression changes nothing, and what cannot be read is None.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import Any

from ..watched import Watched

# Every name of the training loop's frame, and every attribute of the objects that keep the rest in a trainer.
_NAMES = (
    "[*globals().items(), *((f'{n}.{k}', v) for n in ('self', 'trainer') "
    "for k, v in getattr(globals().get(n), '__dict__', {}).items())]"
)
OPTIMIZERS = f"[(n, v) for n, v in {_NAMES} if issubclass(type(v), __import__('torch').optim.Optimizer)]"
# All that there are, to make sure that none is overlooked: the collector goes through all objects once, in 30 ms for a
# million.  So it cannot be read of a process that has allocated more blocks than these.
_MOST_BLOCKS = 10_000_000
ALL_OPTIMIZERS = (
    "[('', v) for kinds in [(lambda f, k: f(f, k))(lambda f, k: {k}.union(*(f(f, s) for s in k.__subclasses__())), "
    "__import__('torch').optim.Optimizer)] for v in (__import__('gc').get_referrers(*kinds) "
    f"if __import__('sys').getallocatedblocks() < {_MOST_BLOCKS} else None) if type(v) in kinds]"
)

_MOST_MODELS = 4  # of which a recorder reads something
_READABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*|\[\d+\])*")  # a variable, its attribute or item


def is_readable(root: str) -> bool:
    """Whether the name of a model is an expression: a class name with a number after it is none."""
    return _READABLE.fullmatch(root) is not None


def of_model(expression: str, root: str, other: str = "") -> str:
    """What is asked about this model, or these two."""
    named = {"ROOT": root, "FIRST": root, "OTHER": other}
    return re.sub(r"\b(ROOT|FIRST|OTHER)\b", lambda match: named[match[0]], expression)


def filled(asked: Iterable[str], models: Iterable[str]) -> Iterator[str]:
    """What rules ask of a job with these models: what is about none of them first."""
    known = sorted(each for each in set(models) if is_readable(each))[:_MOST_MODELS]
    for expression in sorted(set(asked), key=lambda each: "ROOT" in each or "FIRST" in each):
        if "FIRST" in expression:
            yield from (of_model(expression, *pair) for pair in permutations(known, 2))
        elif "ROOT" in expression:
            yield from (of_model(expression, root) for root in known)
        else:
            yield expression


def of_frame(expression: str) -> str:
    """The same question about the optimizers of the loop's frame alone, which costs less."""
    return expression.replace(ALL_OPTIMIZERS, OPTIMIZERS)


def value(watched: Watched, expression: str) -> Any:
    """What it is in the job, if that is a number, a text, or a collection of such; else None."""
    return _value(watched.read(expression))


def values_elsewhere(watched: Watched, expression: str) -> list[Any]:
    """Likewise, on a rank of each further host."""
    return [_value(shown) for shown in watched.elsewhere(expression)]


def _value(shown: str | None) -> Any:
    try:
        return None if shown is None else ast.literal_eval(shown)
    except (ValueError, SyntaxError):
        return None
