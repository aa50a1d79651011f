"""The version of this release, the pairs of Python and torch with which it was tested, and what an older torch lacks.

Read by probe.agents and attach.  Invariant: a pair is listed only if tests/bench/versions.py passed with it: the seed
commands, the weights of every kind of training that it has the packages for, and what torch.compile compiles.
"""

from __future__ import annotations

import re

__version__ = "0.1.0"

# The first torch with a function of Python's around the engine of autograd, and with kernels that are told their keys.
_NEEDED = {"steps or modules": (2, 3), "collectives": (2, 4)}
TESTED = frozenset({("3.11", "2.13.0"), ("3.12", "2.5.1"), ("3.13", "2.15.0")})


def is_tested(python: str, torch: str) -> bool:
    """Whether the list has this pair of versions as the target names them; builds of one torch version count as one."""
    return (".".join(python.split(".")[:2]), torch.partition("+")[0]) in TESTED


def lacking(torch: str) -> str:
    """`no steps or modules before 2.3, no collectives before 2.4`: what is not recorded of this torch, if anything."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", torch)
    if found is None:
        return ""
    version = int(found[1]), int(found[2])
    return ", ".join(f"no {what} before {first[0]}.{first[1]}" for what, first in _NEEDED.items() if version < first)
