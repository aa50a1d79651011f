"""The repr of a snippet's last expression, which is cut before it is made: the training waits meanwhile.

Used by evaluation.py.  Invariant: of built-in containers, however large, no more is looked at than is shown; what is
shown whole is exactly what repr() gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MOST_CHARACTERS = 1 << 20
_QUICK = 100_000  # items, up to which repr() itself is quick
_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}"), set: ("{", "}")}
_TEXTS = (str, bytes, bytearray)
_DEPTH = 100


def echo(value: Any, limit: int = MOST_CHARACTERS) -> str:
    """Cut at the limit, unless it is a class of the job or of a library that makes a longer repr."""
    if _is_small(value):
        return repr(value)
    size, pieces = 0, list[str]()
    for piece in _pieces(value, limit, ()):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            return f"{''.join(pieces)[:limit]} … (cut; its length is {len(value):,})"
    return "".join(pieces)


def _is_small(value: Any) -> bool:
    """Whether it has few items, those of its containers counted."""
    todo, items = [value], 0
    while todo:
        each = todo.pop()
        if type(each) in _TEXTS or type(each) in _BRACKETS:
            items += len(each)
            if items > _QUICK:
                return False
            if type(each) is dict:
                todo += each.values()
            elif type(each) in _BRACKETS:
                todo += each
    return True


def _pieces(value: Any, limit: int, around: tuple[int, ...]) -> Iterator[str]:
    kind: type = type(value)
    if kind in _TEXTS:
        yield repr(value[: limit + 1])
    elif kind not in _BRACKETS or not value or len(around) > _DEPTH:
        yield repr(value)
    elif id(value) in around:
        left, right = _BRACKETS[kind]
        yield f"{left}...{right}"
    else:
        left, right = _BRACKETS[kind]
        yield left
        around, begun = (*around, id(value)), False
        for parts in value.items() if kind is dict else zip(value):
            yield ", " if begun else ""
            begun = True
            for place, part in enumerate(parts):
                yield ": " if place else ""
                yield from _pieces(part, limit, around)
        yield f",{right}" if kind is tuple and len(value) == 1 else right
