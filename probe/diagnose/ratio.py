"""A ratio of sums over steps, such as a share of the time, and how far it may be off.

Used by rules and what they are made of.  Invariant: steps that follow each other are alike, so a block of them counts
as one value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ratio(blocks: Sequence[int], parts: Sequence[float], wholes: Sequence[float]) -> tuple[float, float]:
    """The sum of the parts by that of the wholes, and its standard error.

    blocks: in which block each part is; there are at least two.
    """
    _, place = np.unique(blocks, return_inverse=True)
    part, whole = np.bincount(place, parts), np.bincount(place, wholes)
    share, count = part.sum() / whole.sum(), len(part)
    # By linearization: how far each block is from what it should have; with few blocks more, as Student's t has it.
    small = (1 + 1.5 / (count - 1)) * np.sqrt(count / (count - 1))
    return float(share), float(small * np.sqrt(np.sum((part - share * whole) ** 2)) / whole.sum())


def sure_above(value: float, error: float, threshold: float) -> float:
    """How sure it is that what was measured so, with this standard error, exceeds the threshold, 0 to 1."""
    from math import erf, sqrt

    return 0.5 * (1 + erf((value - threshold) / error / sqrt(2))) if error > 0 else float(value > threshold)
