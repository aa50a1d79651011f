"""The long runs: what `make test` does at a tenth of the size, and other versions, printed as a table.

    python tests/bench/soak.py

On every Python that is found: 10,000 cancels at the edge of a snippet's end, 1,000 kills of an attach.  Then other
versions (versions.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import versions
from delivering import interpreters
from runs import PYTEST, run


def main() -> int:
    cancels = ["tests/every_python.py", "tests/unit/test_cancel.py"]
    good = [
        run(f"10,000 cancels at the edge of a snippet's end, Python {version}", [python, *cancels], CANCELS="10000")
        for version, python in interpreters()
    ]
    kills = [*PYTEST, "tests/integration/test_attach.py", "-k", "killed"]
    good.append(run("1,000 kills of an attach", kills, PROBE_KILLS="1000"))
    return max(versions.main(), 0 if all(good) else 1)


if __name__ == "__main__":
    sys.exit(main())
