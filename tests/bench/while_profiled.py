"""Step time of an attached job while it is profiled, over its steps before and after, when nobody looks.

    python tests/bench/while_profiled.py [--only WORKLOAD,…] [--rounds 60] [--python PATH]
    twenty minutes a workload

A round is ten seconds of samples and ten without; its ratio is of the medians, and of the means.  The command has its
start to itself: what it imports is not a part of a profile.
"""

from __future__ import annotations

import argparse
import subprocess

from arms import Job, Times
from sizes import SIZES
from statistics_of_pairs import Interval
from while_why import ASIDE, for_seconds, in_turns, tell

PROFILED_S, STARTS_S = 10.0, 1.0


def while_profiled(job: Job, steps: int, probe: str) -> Times:
    """Steps amid the samples of one command."""
    seconds = PROFILED_S + 2 * STARTS_S
    words = [probe, job.pids[0], "profile", "--seconds", str(seconds), "--rate", "100", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        for_seconds(job, steps, 2 * STARTS_S)
        times = for_seconds(job, steps, PROFILED_S)
        late = command.poll() is not None
        while command.poll() is None:
            job.block(steps)
        wrong = command.communicate()[1]
    if command.returncode or late:
        raise SystemExit(f"not profiled all the time: {wrong}")
    return times


def of_workload(name: str, options: argparse.Namespace) -> tuple[Interval, Interval, float]:
    """The ratios of medians and of means, and the step of the attached job."""
    with Job(name, options.python) as job:
        steps = SIZES[name].steps
        subprocess.run([options.probe, "attach", job.pids[0]], check=True, capture_output=True)
        for_seconds(job, steps, ASIDE)
        return in_turns(
            options.rounds,
            lambda: for_seconds(job, steps, PROFILED_S),
            lambda: while_profiled(job, steps, options.probe),
        )


def main() -> None:
    tell(__doc__, "gpt15,acceptance,mlp", 60, of_workload, "attached; while it is profiled at 100 Hz")


if __name__ == "__main__":
    main()
