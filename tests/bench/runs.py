"""A long command as one line of a table: ok or FAIL, how long it took, what it was; its figures, and what it left out.

Called by soak.py and versions.py.  The one invariant: output is shown only of a command that failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PYTEST = [sys.executable, "-m", "pytest", "-rfEs", "-o", "timeout=3600"]


def run(name: str, command: list[str], **environment: str) -> bool:
    begin = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    passed = re.findall(r"\d+ passed", done.stdout)[-1:] or ["-"]
    outcome = "FAIL" if done.returncode else "ok  "
    print(f"{outcome} {time.monotonic() - begin:7.1f} s  {passed[0]:>10}  {name}", flush=True)
    if done.returncode:
        print(done.stdout[-4000:] + done.stderr[-4000:])
    for told in sorted(set(re.findall(r"(?:not run|figures): .*", done.stdout))):
        print(f"{' ' * 28}{told}", flush=True)
    return done.returncode == 0
