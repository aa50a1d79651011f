"""Step time of an attached job while it is recorded, over its steps before and after, when nobody records it.

    python tests/bench/while_recorded.py [--only WORKLOAD,…] [--rounds 8] [--python PATH]    sixteen minutes a workload

A round is a minute of `probe PID record DIR`, from its start to its end, and a minute without; its ratio is of the
medians, and of the means, in which what the recorder asks of the job counts too.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import tempfile

from arms import Job, Times
from sizes import SIZES
from statistics_of_pairs import Interval
from while_why import ASIDE, for_seconds, in_turns, tell

RECORDED_S = 60.0


def while_recorded(job: Job, steps: int, probe: str, folder: str) -> Times:
    """Steps of a minute with a recorder beside the job."""
    words = [probe, job.pids[0], "record", folder, "--name", "job"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as recorder:
        times = for_seconds(job, steps, RECORDED_S)
        recorder.send_signal(signal.SIGINT)
        told = recorder.communicate()[1]
    if recorder.returncode or "begins" not in told:
        raise SystemExit(f"nothing was recorded: {told}")
    return times


def of_workload(name: str, options: argparse.Namespace) -> tuple[Interval, Interval, float]:
    """The ratios of medians and of means, and the step of the attached job."""
    with Job(name, options.python) as job, tempfile.TemporaryDirectory() as folder:
        steps = SIZES[name].steps
        subprocess.run([options.probe, "attach", job.pids[0]], check=True, capture_output=True)
        for_seconds(job, steps, ASIDE)
        return in_turns(
            options.rounds,
            lambda: for_seconds(job, steps, RECORDED_S),
            lambda: while_recorded(job, steps, options.probe, folder),
        )


def main() -> None:
    tell(__doc__, "mlp,gpt15,cnn,acceptance", 8, of_workload, "attached; while it is recorded")


if __name__ == "__main__":
    main()
