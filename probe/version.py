"""The version of this release, and the pairs of Python and torch with which it was tested.

Read by probe.agents.  Invariant: a pair is listed only if tests/bench/versions.py passed with it: the seed commands,
the weights of every kind of training that it has the packages for, and what torch.compile compiles.
"""

from __future__ import annotations

__version__ = "0.1.0"

TESTED = frozenset({("3.11", "2.13.0"), ("3.12", "2.5.1"), ("3.13", "2.15.0")})


def is_tested(python: str, torch: str) -> bool:
    """Whether the list has this pair of versions as the target names them; builds of one torch version count as one."""
    return (".".join(python.split(".")[:2]), torch.partition("+")[0]) in TESTED
