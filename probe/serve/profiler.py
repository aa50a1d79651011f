"""The process that profiles one rank for a client on another host.

Started by profiles, with its order on stdin.  Invariant: it has no port and no key, and ends with the server.
"""

from __future__ import annotations

from ..profile import profiler
from .confinement import confine
from .handover import PROFILER


def main() -> None:
    """Of the process that the server starts."""
    confine(PROFILER)
    profiler.main()
