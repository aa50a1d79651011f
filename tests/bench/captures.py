"""What captures leave in a job's memory, over what torch's profiler leaves there when it is run by hand.

    python tests/bench/captures.py [--captures 20] [--rounds 3] [--workload gpt15]

Each arm has a job of its own that makes the same steps: bare; attached; attached and captured again and again; bare and
profiled by hand as often, its traces written and thrown away.  Told are the anonymous pages of the process, and apart
from them its shared ones (our rows), over those before the first capture.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from arms import Job, Ours

STEPS = 3  # of a capture
WARM = 30
KB = 1024
Look = Callable[[Job, Ours], None]


def resident(job: Job) -> tuple[int, int]:
    """Anonymous and shared pages, in bytes."""
    lines = Path(f"/proc/{job.pids[0]}/status").read_text().splitlines()
    fields = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.split()}
    return int(fields["RssAnon"]) * KB, int(fields["RssShmem"]) * KB


def steps_only(job: Job, ours: Ours) -> None:
    job.block(STEPS + 1)


def captured(job: Job, ours: Ours) -> None:
    words = [ours.probe, job.pids[0], "capture", "--steps", str(STEPS)]
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while command.poll() is None:
        job.block(1)
    if command.returncode:
        raise SystemExit(command.communicate()[1])


def by_hand(job: Job, ours: Ours) -> None:
    job.ask(put="capture")
    job.block(STEPS)
    job.ask(take="capture")


ARMS: dict[str, tuple[bool, Look]] = {  # attached?
    "bare": (False, steps_only),
    "attached": (True, steps_only),
    "captured": (True, captured),
    "by hand": (False, by_hand),
}


def grown(arm: str, options: argparse.Namespace) -> list[tuple[int, int]]:
    """Bytes over those before, after each capture: anonymous, shared."""
    is_attached, look = ARMS[arm]
    ours = Ours(options.probe)
    with Job(options.workload, sys.executable) as job:
        job.block(WARM)
        if is_attached:
            ours.put(job)
        before, found = resident(job), []
        for _ in range(options.captures):
            look(job, ours)
            now = resident(job)
            found.append((now[0] - before[0], now[1] - before[1]))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captures", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workload", default="gpt15")
    parser.add_argument("--probe", default=str(Path(sys.executable).with_name("probe")))
    options = parser.parse_args()
    at = [number for number in (1, 2, 5, 10, 20, 50, 100) if number <= options.captures]
    print(f"{'MB after so many':20}" + "".join(f"{number:>8}" for number in at) + "   shared")
    for arm in ARMS:
        rounds = [grown(arm, options) for _ in range(options.rounds)]
        anonymous = [median(each[number - 1][0] for each in rounds) / 1e6 for number in at]
        shared = median(each[-1][1] for each in rounds) / 1e6
        print(f"{arm:20}" + "".join(f"{each:8.1f}" for each in anonymous) + f"{shared:9.1f}", flush=True)


if __name__ == "__main__":
    main()
