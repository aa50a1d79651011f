"""What a process has mapped, from /proc/PID/maps."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_DELETED = " (deleted)"
# range, permissions, offset, device, inode, and the path, which may hold blanks or be left out
_LINE = re.compile(r"^(\w+)-(\w+) (\S+) (\w+) \S+ \d+ *([^\n]*)$", re.MULTILINE)


class Mapping(NamedTuple):
    """One line of /proc/PID/maps; path is "" for anonymous memory."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str

    @property
    def name(self) -> str:
        """The file's last component, also if the file was deleted since."""
        return os.path.basename(self.path.removesuffix(_DELETED))


def read_mappings(pid: int) -> list[Mapping]:
    """Raises PermissionError, or FileNotFoundError or ProcessLookupError when the process is gone."""
    with open(f"/proc/{pid}/maps", errors="surrogateescape", newline="\n") as file:
        found = _LINE.findall(file.read())
    return [Mapping(int(start, 16), int(end, 16), rest[0], int(rest[1], 16), rest[2]) for start, end, *rest in found]


def mapping_at(mappings: list[Mapping], address: int) -> Mapping | None:
    return next((mapping for mapping in mappings if mapping.start <= address < mapping.end), None)


def modules(mappings: list[Mapping]) -> dict[str, int]:
    """Path -> load address of every mapped file, in the order of the addresses."""
    loaded: dict[str, int] = {}
    for mapping in mappings:
        if mapping.path.startswith("/") and mapping.offset == 0:
            loaded.setdefault(mapping.path, mapping.start)
    return loaded
