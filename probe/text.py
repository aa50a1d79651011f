"""Pieces of lines that are told: ranks as runs such as 0-7, what several have in common, the name that was meant, the
end of a path.

Used by everything that names ranks or files, or refuses a name.  Invariant: pure, and imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
_MOST_RUNS = 8  # that fit into a line


def title(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-7`, `ranks 0-3, 6`."""
    return f"rank{'s' * (len(ranks) > 1)} {span(ranks)}"


def span(ranks: Sequence[int]) -> str:
    """`0-3, 6` for 0, 1, 2, 3, 6."""
    return _joined(_runs(ranks))


def some(ranks: Sequence[int]) -> str:
    """Like span(), but a text too long for a line ends in `and 23 more`."""
    runs = _runs(ranks)
    more = sum(last - first + 1 for first, last in runs[_MOST_RUNS:])
    return _joined(runs[:_MOST_RUNS]) + f" and {more} more" * bool(more)


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key; both in the order in which they come."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def nearest(word: str, known: Iterable[str], shown: Callable[[str], str] = str) -> str:
    """`Did you mean query?`, or "" if no known name is similar.

    known: names of ours in lower case, never those of a job or of DuckDB; shown: how one of them is written.
    """
    close = get_close_matches(word.lower(), list(known), n=1)
    return f"Did you mean {shown(close[0])}?" if close else ""


def short(file: str) -> str:
    """The telling end of a path: below site-packages or the standard library, else the file's name."""
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in file:
            return file.rpartition(mark)[2]
    folder, _, name = file.rpartition("/")
    standard = folder.rpartition("/lib/python3")[2]
    if "/lib/python3" in folder:
        return f"{standard.partition('/')[2]}/{name}".lstrip("/")
    return name


def _runs(ranks: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return runs


def _joined(runs: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
