"""The long runs: what `make test` does at a tenth of the size, printed as a table.

    python tests/bench/soak.py

On every Python that is found: 10,000 cancels at the edge of a snippet's end, 1,000 kills of an attach.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from delivering import interpreters  # noqa: E402

PYTEST = [sys.executable, "-m", "pytest", "-o", "timeout=3600"]


def run(name: str, command: list[str], **environment: str) -> bool:
    begin = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    print(f"{'ok  ' if not done.returncode else 'FAIL'} {time.monotonic() - begin:7.1f} s  {name}", flush=True)
    if done.returncode:
        print(done.stdout[-4000:] + done.stderr[-4000:])
    return done.returncode == 0


def main() -> int:
    cancels = ["tests/every_python.py", "tests/unit/test_cancel.py"]
    good = [
        run(f"10,000 cancels at the edge of a snippet's end, Python {version}", [python, *cancels], CANCELS="10000")
        for version, python in interpreters()
    ]
    kills = [*PYTEST, "tests/integration/test_attach.py", "-k", "killed"]
    good.append(run("1,000 kills of an attach", kills, PROBE_KILLS="1000"))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
