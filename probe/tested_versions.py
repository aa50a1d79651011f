"""The pairs of Python and torch that this release was tested with.

Read by probe.agents.  The one invariant: a pair stands here only if tests/bench/versions.py passed with it: the seed
commands, the weights of every kind of training that it has the packages for, and what torch.compile compiles.
"""

from __future__ import annotations

TESTED = frozenset({("3.11", "2.13.0"), ("3.12", "2.5.1"), ("3.13", "2.15.0")})


def is_tested(python: str, torch: str) -> bool:
    """Whether these versions, as the target names them, are a pair of the list; builds of torch do not differ."""
    return (".".join(python.split(".")[:2]), torch.partition("+")[0]) in TESTED
