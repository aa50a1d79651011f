"""The places that hold tensors: a tree whose edges are texts, so that many long paths travel as a few short ones.

Filled by look.py.  Invariant: a place comes after the one that it is in.
"""

from __future__ import annotations

NOWHERE = -1


class Places:
    """rows: of each place, the number of the one that it is in (NOWHERE: none) and the text of the edge."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []
        self._numbers: dict[tuple[int, str], int] = {}

    def add(self, within: int, text: str) -> int:
        """The number of this place; an edge without a text leads nowhere else."""
        if not text:
            return within
        key = within, text
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.rows)
            self.rows.append(key)
        return number
