"""What the agent may import, because it runs in other people's processes.  (import-linter checks the rest.)"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
AGENT = sorted((ROOT / "agent").rglob("*.py"))
SHARED = [ROOT / "probe" / "protocol.py", ROOT / "probe" / "streams.py"]
# pynvml is nvidia-ml-py's one pure Python file, imported where there is a GPU to sample.
ALLOWED = {*sys.stdlib_module_names, "pynvml"}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """The leading dots and the module of each import statement."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from ((node.level, name) for name in names)


@pytest.mark.parametrize("path", AGENT + SHARED, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_agent_imports_only_the_standard_library(path: Path) -> None:
    assert {name.split(".")[0] for level, name in imports(path) if not level} <= ALLOWED


@pytest.mark.parametrize("path", AGENT, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_agent_imports_only_protocol_and_streams_of_probe(path: Path) -> None:
    depth = len(path.relative_to(ROOT / "agent").parts)  # this many dots stay inside the agent's package
    beyond = {(level, name) for level, name in imports(path) if level > depth}
    assert beyond <= {(depth + 1, "protocol"), (depth + 1, "streams")}


@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.name)
def test_files_shared_with_the_agent_import_nothing_of_ours(path: Path) -> None:
    assert not [name for level, name in imports(path) if level]


# The sentence of a room's docstring that begins so, up to its full stop, names rooms; `all rooms but` those it names.
SAYS = re.compile(r"[Mm]ay\s+import\s+(.*?)\.(?:\s|$)", re.DOTALL)
ROOMS = [
    path
    for place in ("agent", "agent/taps", "probe")
    for path in sorted((ROOT / place).glob("*/__init__.py"))
    if not path.parent.is_symlink()
]


def rooms_imported(room: Path, top: Path) -> set[str]:
    """The rooms, by their first name below the top, that the files of a room import, and those of rooms in it."""
    own, found = room.relative_to(top).parts[0], set()
    for path in room.rglob("*.py"):
        package = path.relative_to(top).parts[:-1]
        for level, name in imports(path):
            if level and level <= len(package) + 1:
                found.add((*package[: len(package) + 1 - level], *name.split("."))[0])
    return {name for name in found - {own} if (top / name).is_dir()}


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_says_what_it_imports(path: Path) -> None:
    says = SAYS.search(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
    top = next(ROOT / name for name in ("agent", "probe") if ROOT / name in path.parents)
    assert says is not None
    named = {name.partition(".")[0] for name in re.findall(r"`([\w.]+)`", says[1])}
    found = rooms_imported(path.parent, top)
    assert not found & named if "all rooms but" in says[1] else found <= named
