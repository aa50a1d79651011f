"""Stacks of profiles, by their innermost nodes: what each frame is called, and which is the innermost of the user's.

Called by the tables that have stacks.  Invariant: a node whose caller was overwritten has no stack; one cut off is
none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..arrays.integers import Ints, distinct, places
from ..snapshot.rows import Rows
from ..snapshot.stacks import Frame

_NOT_THE_USERS = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "<string>", "<torch")


class ProfileStacks:
    """The stacks of these nodes, one for each element of `nodes`.  names: by id, function and file."""

    def __init__(self, nodes: Ints, rows: Rows, names: Mapping[int, str]) -> None:
        self._known = distinct(nodes)
        self._place = places(nodes, self._known)
        by_number = {number: row for row, number in enumerate(rows["seq"].tolist())}
        callers, functions, lines = (rows[slot].tolist() for slot in ("caller", "function", "line"))
        self._frames: dict[int, Frame | None] = {}
        self._stacks = [self._stack(node, by_number, callers, functions, lines, names) for node in self._known.tolist()]

    def _stack(
        self, node: int, by_number: Mapping[int, int], callers: list[int], functions: list[int], lines: list[int],
        names: Mapping[int, str],
    ) -> list[Frame] | None:  # fmt: skip
        """Innermost first; None if a part of it is not known."""
        found = []
        while node > 0:
            row = by_number.get(node)
            name = names.get(functions[row]) if row is not None else None
            if row is None or name is None:
                return None
            function, _, file = name.partition("\0")
            found.append(Frame(file, lines[row], function))
            node = callers[row]
        return found or None

    def stack(self) -> Any:
        """Outermost first."""
        texts = [None if stack is None else [str(frame) for frame in reversed(stack)] for stack in self._stacks]
        return pa.array(texts, pa.list_(pa.string())).take(pa.array(self._place))

    def function(self) -> Any:
        return self._of_users("function", pa.string())

    def file(self) -> Any:
        return self._of_users("file", pa.string())

    def line(self) -> Any:
        return self._of_users("line", pa.int32())

    def _of_users(self, field: str, type: Any) -> Any:
        frames = [None if stack is None else innermost_of_users(stack) for stack in self._stacks]
        values = [None if frame is None else getattr(frame, field) for frame in frames]
        return pa.array(values, type).take(pa.array(self._place))


def innermost_of_users(stack: Sequence[Frame]) -> Frame:
    """The innermost frame of code that is not a library's; the innermost of all if there is none."""
    return next((frame for frame in stack if not any(part in frame.file for part in _NOT_THE_USERS)), stack[0])
