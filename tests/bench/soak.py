"""The long runs: what `make test` does at a tenth of the size, and other versions, printed as a table.

    python tests/bench/soak.py

On every Python that is found: 10,000 cancels at the edge of a snippet's end; 500 attaches to each kind of target, 1,000
of them killed.  Then jobs of several ranks (SCRIPTS), jobs on the played runtime with up to four ranks, and other
versions (versions.py).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import versions
from delivering import interpreters
from runs import PYTEST, run

SCRIPTS = {
    "jobs that are attached to and left all the time, and how jobs end": "toggling.py",
    "every kind of hang, three times": "hangs_of_all_kinds.py",
    "slow ranks named, balanced jobs not": "late_ranks.py",
    "what a training loses that is attached to once a second": "throughput.py",
}


def main() -> int:
    cancels = ["tests/every_python.py", "tests/unit/agent/evals/test_cancel.py"]
    good = [
        run(f"10,000 cancels at the edge of a snippet's end, Python {version}", [python, *cancels], CANCELS="10000")
        for version, python in interpreters()
    ]
    good.append(endurance())
    good.append(run("tests that only this runs", [*PYTEST, "-m", "soak"]))
    with tempfile.TemporaryDirectory() as roots:
        containers = [*PYTEST, "tests/integration/test_container.py"]
        good.append(run("containers, and systems of other releases", containers, PROBE_ROOTS=roots))
    sources = [*PYTEST, "tests/integration/test_collective_sources.py"]
    good.append(run("the tap of collectives toggled at 200 boundaries", sources, BOUNDARIES="200"))
    for name, script in SCRIPTS.items():
        good.append(run(name, [sys.executable, f"tests/bench/{script}"]))
    good.append(played())
    return max(versions.main(), 0 if all(good) else 1)


def played() -> bool:
    """Every kind of job over NCCL, by the Python that has torch's CUDA build: of `make test-cuda`."""
    python = os.environ.get("PLAYED_PYTHON", ".venv_played/bin/python")
    name = "jobs on the played runtime: 1,000 steps on 1, 2 and 4 ranks, 200 attaches"
    files = ["tests/played/test_twenty_times.py", "tests/played/test_rules.py"]
    command = [python, *PYTEST[1:], "-n", "3", "--dist", "worksteal", *files]
    return run(name, command, STEPS="1000", RANKS="1 2 4", TIMES="200")


def endurance() -> bool:
    """Attaches by the hundred, and what was measured meanwhile."""
    with tempfile.NamedTemporaryFile() as figures:
        files = [*PYTEST, "-o", "timeout=3600", "tests/integration/test_endurance.py"]
        good = run("attaches by the hundred", files, ENDURANCE="10", PROBE_FIGURES=figures.name)
        for line in Path(figures.name).read_text().splitlines():
            told = json.loads(line)
            print(f"       {told.pop('name')}: {', '.join(f'{name} {value}' for name, value in told.items())}")
    return good


if __name__ == "__main__":
    sys.exit(main())
