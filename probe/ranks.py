"""Ranks as a reader of text wants them: runs instead of lists.

Used by whatever names ranks.  The one invariant: pure, and nothing is imported.
"""

from __future__ import annotations

from collections.abc import Sequence


def title(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-7`, `ranks 0-3, 6`."""
    return f"rank{'s' * (len(ranks) > 1)} {span(ranks)}"


def span(ranks: Sequence[int]) -> str:
    """`0-3, 6` for 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
