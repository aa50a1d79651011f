"""Evals asked for at random moments of jobs that validate, compile and save: all run, and say what they wait for.

    python tests/bench/patience.py [--evals 100]        about ten minutes

Three jobs of tests/targets/pausing.py at once: one validates for 8 s after every 20 steps, one compiles for 20 s, one
writes for 5 s.  Each eval has --timeout 60.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROBE = Path(sys.executable).parent / "probe"
PAUSES = {"validate": 8.0, "compile": 20.0, "save": 5.0}
SAYS = 3.0  # an eval that waited for so long has told what for


def ask(kind: str, evals: int) -> tuple[str, int, int, int, float, list[str]]:
    """kind, evals that ran, those that waited for long, those that told for what, the longest wait, what went wrong."""
    chance, target = random.Random(kind), ROOT / "tests" / "targets" / "pausing.py"
    job = subprocess.Popen(
        [sys.executable, str(target), str(PAUSES[kind]), "0", kind], stdout=subprocess.PIPE, text=True
    )
    ran = long = told = 0
    longest, wrong = 0.0, []
    try:
        assert job.stdout is not None
        job.stdout.readline()
        subprocess.run([PROBE, "attach", str(job.pid)], check=True, capture_output=True)
        for _ in range(evals):
            time.sleep(chance.uniform(0, PAUSES[kind] / 4))
            begin = time.monotonic()
            command = [PROBE, str(job.pid), "eval", "--timeout", "60", "step"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            took = time.monotonic() - begin
            longest = max(longest, took)
            ran += done.returncode == 0 and done.stdout.strip().isdigit()
            says = re.search(r"waiting for a step: the job is .*", done.stderr)
            long += took > SAYS
            told += took > SAYS and says is not None
            if done.returncode or (took > SAYS and says is None):
                wrong.append(f"{took:.1f} s: {done.stderr.strip()}")
    finally:
        job.kill()
        job.wait()
    return kind, ran, long, told, longest, wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--evals", type=int, default=100)
    evals = parser.parse_args().evals
    shares = [evals // 3 + (place < evals % 3) for place in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for kind, ran, long, told, longest, wrong in pool.map(ask, PAUSES, shares):
            print(f"{kind}: {ran} ran; {told} of {long} that waited said for what; the longest took {longest:.1f} s")
            for line in wrong:
                print(f"  {line}")


if __name__ == "__main__":
    main()
