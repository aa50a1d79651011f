"""A call of an operator, as a trace tells it.

Made by trace, which numbers calls by their places, and completed by processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]

_SHAPE_CHARACTERS = 500


@dataclass
class Operator:
    """One call.  caller: the place of the one it ran in, or -1; made: the operator whose backward it is; dtype: of its
    first tensor, or the arithmetic that a device did in its place; processor: what it ran on; launches: it launched
    something itself."""

    start_ns: int
    end_ns: int
    name: str
    thread: int
    flags: int
    args: Mapping[str, Any]
    dtype: str
    processor: str
    launches: bool = False
    caller: int = -1
    made: Operator | None = None

    @property
    def shapes(self) -> str:
        return str(dims)[:_SHAPE_CHARACTERS] if (dims := self.args.get("Input Dims")) else ""
