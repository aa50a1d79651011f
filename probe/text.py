"""Ranks as a reader of text wants them: runs instead of lists.

Used by whatever names ranks.  The one invariant: pure, and nothing is imported.
"""

from __future__ import annotations

from collections.abc import Sequence

_MANY = 8  # runs that a line has room for


def title(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-7`, `ranks 0-3, 6`."""
    return f"rank{'s' * (len(ranks) > 1)} {span(ranks)}"


def span(ranks: Sequence[int]) -> str:
    """`0-3, 6` for 0, 1, 2, 3, 6."""
    return _written(_runs(ranks))


def some(ranks: Sequence[int]) -> str:
    """Likewise, but what is too long for a line ends in `and 23 more`."""
    runs = _runs(ranks)
    more = sum(last - first + 1 for first, last in runs[_MANY:])
    return f"{_written(runs[:_MANY])} and {more} more" if more else _written(runs)


def _runs(ranks: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return runs


def _written(runs: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
