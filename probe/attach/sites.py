"""Where the target's Python looks for packages, as far as that shows from outside.

Called by `doctor` and `refusals`.  /proc only; paths are the target's own, in its own file system.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from ..host.memory_maps import read_mappings

_SITE = re.compile(r"^(.*/(?:site|dist)-packages)/")
_VERSION = re.compile(r"python(\d)\.(\d+)")


def has_package(pid: int, name: str) -> bool:
    return any(os.path.isdir(f"/proc/{pid}/root{site}/{name}") for site in {*_sites(pid)})


def python_version(pid: int) -> tuple[int, ...] | None:
    """(3, 12), by the names of what is mapped."""
    names = (os.path.basename(mapping.path) for mapping in read_mappings(pid))
    found = [tuple(map(int, match.groups())) for name in names if (match := _VERSION.search(name))]
    return max(found, default=None)


def executable(pid: int) -> str:
    """Of the target; "python" where it cannot be read."""
    try:
        path, root = os.readlink(f"/proc/{pid}/exe"), os.readlink(f"/proc/{pid}/root")
    except OSError:
        return "python"
    return path.removeprefix(root.rstrip("/"))


def shares_our_files(pid: int) -> bool:
    """Whether its root is ours: it is in no container and in no chroot."""
    try:
        return os.path.samefile(f"/proc/{pid}/root", "/")
    except OSError:
        return True


def _sites(pid: int) -> Iterator[str]:
    yield from (match[1] for mapping in read_mappings(pid) if (match := _SITE.match(mapping.path)))
    yield from _python_path(pid)
    version = ".".join(map(str, python_version(pid) or ()))
    for program in _programs(pid):
        prefix = os.path.dirname(os.path.dirname(program))
        for library in (f"{prefix}/lib", f"{prefix}/local/lib"):  # Debian's
            for folder in ("site-packages", "dist-packages"):
                yield f"{library}/python{version}/{folder}"
        yield f"{prefix}/lib/python3/dist-packages"


def _programs(pid: int) -> Iterator[str]:
    """What was started, which in a virtual environment is a link, and what that is."""
    yield executable(pid)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        called = os.fsdecode(file.read().partition(b"\0")[0])
        if called.startswith("/"):
            yield called


def _python_path(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            if entry.startswith(b"PYTHONPATH="):
                yield from filter(None, os.fsdecode(entry.partition(b"=")[2]).split(":"))
