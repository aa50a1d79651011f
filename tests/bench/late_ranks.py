"""Jobs with a slow rank: is it named first, within 30 steps?  And of balanced jobs: nobody is.

python tests/bench/late_ranks.py [--rounds 7] [--only sleep|real|balanced]        about half an hour

Four ranks whose work is a sleep with 2 % of jitter, one of them 5, 10 or 20 % slower in its compute or its loader; two
ranks with arithmetic on a core each, one 10 or 20 % slower or with other programs on its core; 20 balanced jobs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from target import PROBE, TARGETS, TORCHRUN, Target

STEPS = 30
LONG = ("--step", "0.4")  # what else runs on a core then counts for less
HOGS = 2  # programs that compute all the time; beside one a rank that waits now and then has all it wants
SLEEP = [(4, ("--by", by, "--in", place)) for by in ("0.05", "0.1", "0.2") for place in ("compute", "loader")]
REAL = [(2, ("--real", *LONG, "--by", "0.1")), (2, ("--real", *LONG, "--by", "0.2")), (2, ("--real", *LONG, "hogs"))]
BALANCED = [(4, ()), (4, ()), (2, ("--real", *LONG))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["sleep", "real", "balanced"])
    options = parser.parse_args()
    wanted = {"sleep": SLEEP, "real": REAL, "balanced": BALANCED}
    runs: dict[str, list[Run]] = {sort: [] for sort in wanted}
    for turn, (sort, kinds) in itertools.product(range(options.rounds), wanted.items()):
        for ranks, words in kinds if options.only in (None, sort) else ():
            late = -1 if sort == "balanced" else (turn + len(words)) % ranks
            runs[sort].append(judged(ranks, late, words))
    slow, balanced = runs["sleep"] + runs["real"], runs["balanced"]
    for sort, those in (("sleep", runs["sleep"]), ("real", runs["real"]), ("slow in all", slow)):
        first, sure = sum(run.first for run in those), sum(run.sure for run in those)
        print(f"{sort}: the late rank first in {first} of {len(those)}, above the threshold in {sure}")
    print(f"balanced: nobody above the threshold in {sum(run.sure for run in balanced)} of {len(balanced)}")
    good = sum(run.first for run in slow) >= 0.95 * len(slow) and all(run.sure for run in balanced)
    return 0 if good else 1


class Run(NamedTuple):
    """first: whether the latest is who it should be; sure: whether just those are called late who should be."""

    first: bool
    sure: bool


def judged(ranks: int, late: int, words: Sequence[str]) -> Run:
    given = [word for word in words if word != "hogs"]
    slow = ["--late", str(late)] if late >= 0 and "hogs" not in words else []
    with tempfile.TemporaryDirectory() as folder:
        command = (*TORCHRUN, "--log-dir", folder, "--nproc-per-node", str(ranks), str(TARGETS / "straggling.py"))
        job = Target((*command, *given, *slow), Path(folder) / "output", {})
        hogs: list[subprocess.Popen[bytes]] = []
        try:
            job.wait_for("ready", ranks)
            if "hogs" in words:
                core = sorted(os.sched_getaffinity(0))[late]
                busy = ["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"]
                hogs = [subprocess.Popen(busy) for _ in range(HOGS)]
            probe(job, "attach")
            found = told(job)
        finally:
            for hog in hogs:
                hog.kill()
            job.end()
    named = [each["rank"] for each in found if each["is_late"]]
    run = Run(late < 0 or found[0]["rank"] == late, named[:1] == [late] if late >= 0 else not named)
    figures = [f"rank {each['rank']} {each['late_pct']:.1f} % ({each['confidence']:.3f})" for each in found[:2]]
    about = f"{ranks} ranks, late {late} {' '.join(words)}"
    print(
        f"{'ok' if run.sure else 'first' if late >= 0 and run.first else 'WRONG':<6} {about}: {', '.join(figures)}",
        flush=True,
    )
    if found[0]["spends"]:
        print(f"       {found[0]['spends']}", flush=True)
    return run


def told(job: Target) -> list[dict[str, Any]]:
    """Of the first 30 steps that were recorded as a whole."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        asked = probe(job, "stragglers", "--steps", str(STEPS), "--format", "json")
        found: list[dict[str, Any]] = json.loads(asked) if asked else []
        if found and found[0]["steps"] == STEPS:
            return found
        time.sleep(1)  # asking takes a core
    raise TimeoutError(job.output)


def probe(job: Target, *words: str) -> str:
    command = [str(PROBE), *words, str(job.pid)] if words == ("attach",) else [str(PROBE), str(job.pid), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


if __name__ == "__main__":
    sys.exit(main())
