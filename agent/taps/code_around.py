"""Code of ours that runs a method's own code as a separate function, put in the method's place by a tap.

What torch.compile made of the method's own code stays valid, because that code is unchanged.  The optimizers' tap and
the graphs' use this.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from types import CodeType

from .dynamo import skip

ORIGINAL = "original"  # this string in the source becomes the method's own code


@lru_cache(maxsize=2)  # the process's next agent reuses it
def code_around(source: str, original: CodeType) -> CodeType:
    """Of the function inside the source's only statement; a traceback shows torch's file, where the method begins."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = original.co_firstlineno  # type: ignore[attr-defined]
    code = compile(tree, original.co_filename, "exec", dont_inherit=True)
    for _ in range(2):  # the statement, and the function inside
        code = next(constant for constant in code.co_consts if isinstance(constant, CodeType))
    ours = code.replace(co_consts=tuple(original if each == ORIGINAL else each for each in code.co_consts))
    skip(ours)
    return ours
