"""The target's Python installation and the packages it can import, as far as /proc shows them.

Called by `doctor`, `refusals`, `rendezvous` and `inject.target`.  Paths are the target's own, in its own file system.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator

from ..host.memory_maps import read_mappings
from ..host.processes import environment, executable

_SITE = re.compile(r"^(.*/(?:site|dist)-packages)/")
_VERSION = re.compile(r"(?:lib)?python(\d)\.(\d+)")


def has_package(pid: int, name: str) -> bool:
    return any(os.path.isdir(f"/proc/{pid}/root{site}/{name}") for site in {*_sites(pid)})


def python_version(pid: int) -> tuple[int, ...] | None:
    """(3, 12), or None where no mapped file tells."""
    return newest_version(mapping.path for mapping in read_mappings(pid))


def newest_version(paths: Iterable[str]) -> tuple[int, ...] | None:
    """(3, 12) for /usr/lib/libpython3.12.so; None where no interpreter or libpython is among the paths."""
    found = (_VERSION.match(os.path.basename(path)) for path in paths)
    return max((tuple(map(int, match.groups())) for match in found if match), default=None)


def own_executable(pid: int) -> str:
    """The executable's path as the target sees it; "python" where it cannot be read."""
    path = executable(pid)
    try:
        return path.removeprefix(os.readlink(f"/proc/{pid}/root").rstrip("/")) or "python"
    except OSError:
        return "python"


def shares_our_files(pid: int) -> bool:
    """Whether its root is ours: it is in no container and in no chroot."""
    try:
        return os.path.samefile(f"/proc/{pid}/root", "/")
    except OSError:
        return True


def _sites(pid: int) -> Iterator[str]:
    yield from (match[1] for mapping in read_mappings(pid) if (match := _SITE.match(mapping.path)))
    yield from filter(None, environment(pid).get("PYTHONPATH", "").split(":"))
    version = ".".join(map(str, python_version(pid) or ()))
    programs = [own_executable(pid)]
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        started_as = os.fsdecode(file.read().partition(b"\0")[0])
        programs += [started_as] if started_as.startswith("/") else []  # a link in a virtual environment
    for program in programs:
        prefix = os.path.dirname(os.path.dirname(program))
        for library in (f"{prefix}/lib", f"{prefix}/local/lib"):  # the latter is Debian's
            for folder in ("site-packages", "dist-packages"):
                yield f"{library}/python{version}/{folder}"
        yield f"{prefix}/lib/python3/dist-packages"
