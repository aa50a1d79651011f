"""A command loads only what it needs, because imports take most of its time."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("duckdb", "numpy", "pyarrow")


@pytest.mark.parametrize(
    ("statement", "absent"), [("import probe", (*HEAVY, "zmq")), ("import probe.connection", (*HEAVY, "zmq"))]
)
def test_importing_probe_loads_no_heavy_library(statement: str, absent: tuple[str, ...]) -> None:
    code = f"import sys; {statement}; print([name for name in {absent} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
