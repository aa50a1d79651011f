"""How likely it is that something exceeds a threshold, by its standard error.

Used by rules.  Invariant: pure.
"""

from __future__ import annotations

from math import erf, sqrt


def likely(excess: float, error: float) -> float:
    """How likely an excess with this standard error is one, 0 to 1."""
    return 0.5 * (1 + erf(excess / error / sqrt(2))) if error > 0 else float(excess > 0)
