"""Rank numbers as text: runs such as 0-7 instead of lists.

Used by everything that names ranks.  Invariant: pure, and imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Sequence

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
