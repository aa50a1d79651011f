"""The memory that the cgroups of this process allow, and what they have left.

Asked by the processes beside a job and by what opens DuckDB, for the training may be in the same cgroup.  Invariant: a
limit is only known of cgroup v2; any other counts as none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_OWN = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def memory_limit() -> int | None:
    """The lowest limit, in bytes; None without one."""
    return min((most for folder in _folders() if (most := _number(folder / "memory.max")) is not None), default=None)


def memory_left() -> int | None:
    """The bytes that are left until the kernel ends a whole cgroup of this process at once; None where it would end one
    process.  Kubernetes, since 1.28, has the former for every container: memory.oom.group is 1."""
    left, as_one = list[int](), False
    for folder in _folders():  # who exceeds the limit of a cgroup also ends one below it, as a whole
        as_one = as_one or _number(folder / "memory.oom.group") == 1
        most, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if as_one and most is not None and used is not None:
            left.append(max(0, most - used + _reclaimable(folder)))
    return min(left, default=None)


def _folders() -> Iterator[Path]:
    """Of this process's cgroup and of those above it, as far as they are seen here."""
    path = next((line[3:] for line in _lines(_OWN) if line.startswith("0::")), "/")
    own = _ROOT / path.lstrip("/")
    return (folder for folder in (own, *own.parents) if folder.is_relative_to(_ROOT))


def _reclaimable(folder: Path) -> int:
    """Of files that nobody has used for a while."""
    words = (line.split() for line in _lines(folder / "memory.stat"))
    return next((int(value) for name, value in words if name == "inactive_file"), 0)


def _number(path: Path) -> int | None:
    """None for "max", and where there is no such file."""
    text = "".join(_lines(path))
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
