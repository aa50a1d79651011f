"""The pairs of Python and torch that this release was tested with.

Read by probe.agents.  The one invariant: a pair stands here only if all tests ran with it.
"""

from __future__ import annotations

TESTED = frozenset({("3.11", "2.13.0")})


def is_tested(python: str, torch: str) -> bool:
    """Whether these versions, as the target names them, are a pair of the list; builds of torch do not differ."""
    return (".".join(python.split(".")[:2]), torch.partition("+")[0]) in TESTED
