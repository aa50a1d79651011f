"""Boundaries, evals and looks at memory reach into frames, so their tests run on every Python installed here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]

SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14")
OTHERS = [version for version in SUPPORTED if version != f"{sys.version_info[0]}.{sys.version_info[1]}"]
MODULES = (
    "inspect/test_exclusive.py", "inspect/test_frame_locals.py", "boundary/test_boundary.py",
    "evals/test_evaluation.py", "evals/test_cancel.py", "evals/test_operation_gate.py", "memory/test_walk.py",
    "trace/test_functions.py", "trace/test_kernels.py", "trace/test_recursion.py",
)  # fmt: skip


def interpreter(version: str) -> str | None:
    """Where this Python is: known to pyenv, or on the path."""
    pyenv = shutil.which("pyenv")
    if pyenv is not None:
        versions = subprocess.run([pyenv, "versions", "--bare"], capture_output=True, text=True).stdout.split()
        for full in versions:
            if full.startswith(f"{version}."):
                root = subprocess.run([pyenv, "prefix", full], capture_output=True, text=True).stdout.strip()
                return str(Path(root, "bin", "python"))
    return shutil.which(f"python{version}")


@pytest.mark.parametrize("version", OTHERS)
def test_on_every_python_installed_here(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    here = Path(__file__).parent
    command = [python, str(here.parents[1] / "every_python.py"), *(str(here / module) for module in MODULES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout and not done.stdout.startswith("0 passed")


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_an_interpreter_with_its_own_gil_is_not_looked_into(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    script = Path(__file__).parents[2] / "targets" / "interpreters.py"
    done = subprocess.run([python, "-B", str(script), "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.endswith("['asleep', 'beside']\n"), done.stdout + done.stderr
