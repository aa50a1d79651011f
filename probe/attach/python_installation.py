"""The version of the target's Python, as far as /proc shows it.

Called by `doctor` and `inject.target`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from ..host.memory_maps import read_mappings

_VERSION = re.compile(r"(?:lib)?python(\d)\.(\d+)")


def python_version(pid: int) -> tuple[int, ...] | None:
    """(3, 12), or None where no mapped file tells."""
    return newest_version(mapping.path for mapping in read_mappings(pid))


def newest_version(paths: Iterable[str]) -> tuple[int, ...] | None:
    """(3, 12) for /usr/lib/libpython3.12.so; None where no interpreter or libpython is among the paths."""
    found = (_VERSION.match(os.path.basename(path)) for path in paths)
    return max((tuple(map(int, match.groups())) for match in found if match), default=None)
