"""What the agent may import, because it runs in other people's processes.  (import-linter checks the rest.)"""

from __future__ import annotations

import ast
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
