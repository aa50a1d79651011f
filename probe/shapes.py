"""What a JSON value must look like to be accepted: shapes, and their compilation to functions.

A shape is a type, None, Whole or Printable, a tuple of shapes (any of them), [shape] (a list of them), a dict of shapes
(an object with these fields; "name?" may be missing), or Each(shape) (an object with any names).

Used for whatever an agent or server says.  Invariant: a check never raises.  Stdlib only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Each:
    """An object whose values all have this shape."""

    shape: Any


@dataclass(frozen=True)
class Whole:
    """An integer between these bounds, which leave room to add two."""

    least: int = -(1 << 61)
    most: int = 1 << 61


@dataclass(frozen=True)
class Printable:
    """A text of one line, of at most so many characters."""

    most: int = 4096


NUMBER, TIME, SMALL = Whole(), (Whole(0), None), (Whole(-(1 << 31), (1 << 31) - 1), None)
TEXT, RANKS, LINE = (str, None), ([Whole(0, 1 << 31)], None), (Printable(), None)

Check = Callable[[Any, str], str]  # (a value, its name) -> what is wrong with it, "" for nothing

# Shapes are compiled to functions once: a query over 512 ranks checks 60,000 values.


def compiled(shape: Any) -> Check:
    """The check of this shape."""
    if isinstance(shape, dict):
        return _object(shape)
    if isinstance(shape, (list, Each)):
        return _many(shape)
    alternatives = shape if isinstance(shape, tuple) else (shape,)
    types = {type(None) if each is None else each for each in alternatives if isinstance(each, type) or each is None}
    wholes = [each for each in alternatives if isinstance(each, Whole)]
    least, most = (wholes[0].least, wholes[0].most) if wholes else (1, 0)
    length = next((each.most for each in alternatives if isinstance(each, Printable)), -1)
    others = [compiled(each) for each in alternatives if isinstance(each, (dict, list, Each))]

    def check_value(value: Any, name: str) -> str:
        if type(value) in types or (type(value) is int and least <= value <= most):
            return ""
        if type(value) is str and len(value) <= length and value.isprintable():
            return ""
        return "" if any(not other(value, name) for other in others) else f"{name} is {str(value)[:60]!r}"

    return check_value


def _object(shape: Mapping[str, Any]) -> Check:
    fields = [(name.rstrip("?"), name.endswith("?"), compiled(inner)) for name, inner in shape.items()]

    def check_value(value: Any, name: str) -> str:
        if type(value) is not dict:
            return f"{name} is {str(value)[:60]!r}"
        for field, optional, inner in fields:
            if field in value:
                if wrong := inner(value[field], field):
                    return f"{name}.{wrong}"
            elif not optional:
                return f"{name} without {field}"
        return ""

    return check_value


def _many(shape: Any) -> Check:
    inner, kind = (compiled(shape.shape), dict) if isinstance(shape, Each) else (compiled(shape[0]), list)

    def check_value(value: Any, name: str) -> str:
        if type(value) is not kind:
            return f"{name} is {str(value)[:60]!r}"
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for each in items:
            if wrong := inner(each, name):
                return wrong
        return ""

    return check_value
