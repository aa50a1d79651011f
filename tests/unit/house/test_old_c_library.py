"""What Pythons lack that were built for glibc 2.17, as conda's and uv's are, is called only where it may be missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
MISSING = re.compile(r"os\.(memfd_create|MFD_\w+|pidfd_open|copy_file_range|splice|getrandom)|signal\.pidfd_\w+")
MAY_BE_MISSING = {ROOT / "agent/storage/memfd.py", ROOT / "probe/host/system_calls.py"}
FILES = [path for room in ("agent", "cli", "probe") for path in sorted((ROOT / room).rglob("*.py"))]


def lacking(path: Path) -> Iterator[str]:
    """What a file calls of these."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and MISSING.fullmatch(ast.unparse(node)):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_nothing_is_called_that_such_a_python_lacks() -> None:
    assert not [each for path in FILES if path not in MAY_BE_MISSING for each in lacking(path)]
