"""Pairs of Python and torch: does every command of the document pass on it, do weights stay, does nothing compile anew.

    python tests/bench/versions.py [NAME …]      newest, old, pinned; all of them without a name

The jobs run on the pair, the command where this runs; a pair for which all is ok may stand in probe/version.py.  The
one invariant: a torch goes into a temporary folder (about 6 GB, since the registry's are built for CUDA), which is gone
afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from delivering import interpreters
from runs import PYTEST, ROOT, run

OLD, OLD_PYTHON = "torch==2.5.1", "3.12"  # dynamo skips code in another way before 2.6
WITH_TORCH = ["numpy"]  # what the jobs import besides
SUITES = {
    "seed commands": ["tests/acceptance"],
    "weights and steps": ["tests/frameworks/test_frameworks.py"],
    "torch.compile": ["tests/frameworks/test_compiled.py"],
}
AGENTS = "SELECT python, torch, untested, forward_tap, backward_tap, optimizer_tap, loader_tap FROM probe.agents"
PROBE = Path(sys.executable).parent / "probe"


@contextmanager
def with_torch(python: str, torch: str) -> Iterator[str | None]:
    """An environment of this Python with that torch; None if the registry has none for it."""
    with tempfile.TemporaryDirectory(prefix="probe-versions-") as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        made = f"{folder}/bin/python"
        install = [made, "-m", "pip", "install", "--quiet", "--no-cache-dir", torch, *WITH_TORCH]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode and "No matching distribution" not in done.stderr:
            print(done.stderr[-2000:])
        yield None if done.returncode else made


def taps(python: str) -> str:
    """Which taps are in, as probe.agents says it of a small loop."""
    loop = subprocess.Popen([python, "tests/targets/loop.py"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert loop.stdout is not None and loop.stdout.readline().startswith("ready")
        subprocess.run([PROBE, "attach", str(loop.pid)], check=True, capture_output=True)
        query = [PROBE, str(loop.pid), "query", "--format", "json", AGENTS]
        found = json.loads(subprocess.run(query, check=True, capture_output=True, text=True).stdout)[0]
    finally:
        loop.terminate()
        loop.wait()
        if loop.stdout is not None:
            loop.stdout.close()
    return ", ".join(f"{name}: {value}" for name, value in found.items())


def tried(python: str) -> bool:
    print(taps(python), flush=True)
    good = [run(name, [*PYTEST, *files], TARGET_PYTHON=python) for name, files in SUITES.items()]
    return all(good)


def newest() -> bool:
    """The newest torch on the newest Python for which the registry has one."""
    for version, python in reversed(interpreters()):
        with with_torch(python, "torch") as made:
            if made is not None:
                return tried(made)
        print(f"not run: the registry has no torch for Python {version}", flush=True)
    return False


def old() -> bool:
    python = dict(interpreters()).get(OLD_PYTHON)
    if python is None:
        print(f"not run: {OLD}, for there is no Python {OLD_PYTHON}", flush=True)
        return True
    with with_torch(python, OLD) as made:
        return made is not None and tried(made)


def pinned() -> bool:
    return tried(sys.executable)


PAIRS = {"newest": newest, "old": old, "pinned": pinned}


def main(names: list[str] | None = None) -> int:
    good = [PAIRS[name]() for name in names or PAIRS]
    print("not run: CUDA, and every other pair of Python and torch")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
