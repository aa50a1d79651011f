"""A job under DDP and FSDP2 that is attached to, set, asked and left all the time; and how jobs end with us.

python tests/bench/toggling.py [--minutes 10] [--exits 40] [--ranks 4]        about 25 minutes

The first must go on with the weights of one that nobody looked at.  The second counts jobs that do not end in order:
torch now and then aborts at the end of the interpreter, and must not do so more often with us.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import comb
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from target import PROBE, TARGETS, TORCHRUN, Target

TELL, SLEEP_S = 1000, 0.01
ASKED: tuple[tuple[str, ...], ...] = (
    ("set", "sample=1"),
    ("query", "SELECT COUNT(*) FROM python.nccl_trace"),
    ("set", "backward=off"),
    ("query", "SELECT COUNT(*) FROM probe.collectives"),
    ("set", "sample=8", "backward=on"),
    ("stack",),
    ("set", "sample=auto"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--exits", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    good = not options.minutes or toggled(options.ranks, 60 * options.minutes)
    return 0 if good and (not options.exits or ended(options.exits)) else 1


@contextmanager
def job(ranks: int, *words: str) -> Iterator[Target]:
    with tempfile.TemporaryDirectory() as folder:
        command = (*TORCHRUN, "--log-dir", folder, "--nproc-per-node", str(ranks), str(TARGETS / "toggled.py"), *words)
        target = Target(command, Path(folder) / "output", {})
        try:
            target.wait_for("ready", times=ranks)
            yield target
        finally:
            target.end()


def toggled(ranks: int, seconds: float) -> bool:
    with job(ranks, "1000000000", "--tell", str(TELL), "--sleep", str(SLEEP_S)) as watched:
        attaches, failures, end = 0, 0, time.monotonic() + seconds
        while time.monotonic() < end and watched.alive:
            failures += not asked("attach", str(watched.pid))
            attaches += 1
            for words in ASKED:
                failures += not asked(str(watched.pid), *words)
            failures += not asked(str(watched.pid), "detach")
        alive = watched.alive
        told = dict(re.findall(r"at (\d+ \d+) (\w+)", watched.output))
        steps = [int(key.split()[0]) for key in told]
        last = max((step for step in steps if steps.count(step) == ranks), default=0)
    with job(ranks, str(last), "--tell", str(TELL)) as alone:
        alone.process.wait(timeout=2 * seconds + 60)
        expected = dict(re.findall(r"at (\d+ \d+) (\w+)", alone.output))
        same = {key: told.get(key) for key in expected} == expected
    good = alive and last > 0 and same and not failures
    print(f"{'ok' if good else 'WRONG':<6} {attaches} attaches and detaches of {ranks} ranks, {seconds / 60:.1f} min")
    print(f"       the job {'goes on' if alive else 'has ended'}, {failures} commands failed, weights "
          f"{'the same' if same else 'OTHERS'} up to step {last}", flush=True)  # fmt: skip
    return good


def asked(*words: str) -> bool:
    done = subprocess.run([str(PROBE), *words], capture_output=True, text=True, timeout=120)
    if done.returncode:
        print(f"       {' '.join(words)}: {done.stderr.strip()}", flush=True)
    return not done.returncode


def ended(runs: int) -> bool:
    """With us and without, in turns."""
    bad = {True: 0, False: 0}
    for _, with_us in itertools.product(range(runs), (True, False)):
        with job(2, "150", "--sleep", "0.02") as target:
            if with_us:
                asked("attach", str(target.pid))
            bad[with_us] += target.process.wait(timeout=120) != 0
    good = by_chance(bad[True], bad[False], runs) > 0.05
    print(f"{'ok' if good else 'WRONG':<6} ended otherwise than in order: {bad[True]} of {runs} jobs with us, "
          f"{bad[False]} of {runs} without", flush=True)  # fmt: skip
    return good


def by_chance(ours: int, without: int, runs: int) -> float:
    """Fisher's exact test: how likely so many of all the bad ones, or more, would be ours."""
    bad = ours + without
    return sum(comb(runs, each) * comb(runs, bad - each) for each in range(ours, min(bad, runs) + 1)) / comb(
        2 * runs, bad
    )


if __name__ == "__main__":
    sys.exit(main())
