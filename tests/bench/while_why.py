"""Step time of a job while `probe why` looks at it, over its steps before and after: `why` attaches and leaves again.

    python tests/bench/while_why.py [--only WORKLOAD,…] [--rounds 8] [--python PATH]        eight minutes a workload

A round is as many seconds of bare steps as `why` takes, `why PID --leave`, and bare steps again; its ratio is of the
medians, and of the means, in which what the attach takes counts too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

from arms import Job, Times
from sizes import SIZES
from statistics_of_pairs import Interval, ratio_interval

WHY_S = 30.0  # the attach, two looks, the watch and the rules
ASIDE = 20.0  # seconds, for what only the first steps of a job do


def for_seconds(job: Job, steps: int, seconds: float) -> Times:
    """Steps for so long."""
    times, end = Times(), time.monotonic() + seconds
    while time.monotonic() < end:
        times += job.block(steps)
    return times


def while_why(job: Job, steps: int, probe: str) -> Times:
    """Steps from the start of the command to its end."""
    words = [probe, "why", job.pids[0], "--leave", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        times = Times()
        while command.poll() is None:
            times += job.block(steps)
        said, wrong = command.communicate()
    if command.returncode or '"steps": 0' in said:
        raise SystemExit(f"why looked at no steps: {said[:200]}{wrong}")
    return times


def of_workload(name: str, options: argparse.Namespace) -> tuple[Interval, Interval, float]:
    """The ratios of medians and of means, and the bare step."""
    with Job(name, options.python) as job:
        steps = SIZES[name].steps
        for_seconds(job, steps, ASIDE)
        return in_turns(
            options.rounds, lambda: for_seconds(job, steps, WHY_S), lambda: while_why(job, steps, options.probe)
        )


def in_turns(
    rounds: int, usual: Callable[[], Times], meanwhile: Callable[[], Times]
) -> tuple[Interval, Interval, float]:
    """The ratios of medians and of means, over the usual steps before and after; and the usual step."""
    medians, means, bare, before = [], [], [], usual()
    for _ in range(rounds):
        during, after = meanwhile(), usual()
        bare.append(median(before))
        medians.append((median(during), (median(before) + median(after)) / 2))
        means.append((fmean(during), (fmean(before) + fmean(after)) / 2))
        before = after
    return ratio_interval(medians), ratio_interval(means), median(bare)


def main() -> None:
    tell(__doc__, "mlp,gpt15,cnn,transformer,acceptance", 8, of_workload, "bare; while why looks")


def tell(
    about: str | None, only: str, rounds: int,
    of_one: Callable[[str, argparse.Namespace], tuple[Interval, Interval, float]], what: str,
) -> None:  # fmt: skip
    """A line for each workload.  of_one: the ratios of medians and of means, and the step without."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=only)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--probe", default=str(Path(sys.executable).with_name("probe")))
    options = parser.parse_args()
    for name in options.only.split(","):
        of_medians, of_means, usual = of_one(name, options)
        print(f"{SIZES[name].title}: {usual / 1e6:.3f} ms {what}, {said(of_medians)} in the median, "
              f"{said(of_means)} in the mean", flush=True)  # fmt: skip


def said(one: Interval) -> str:
    return f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})"


if __name__ == "__main__":
    main()
