"""Does what `probe why` advises bring what it says?  Jobs of tests/targets/sick are cured while they run.

python tests/bench/remedies.py [--only NAME,…] [--rounds 1] [--long 60] [--read 20]        some 4 minutes a job

A job is attached to and measured for --long seconds; `why` is asked, read for --read seconds, and its Try run by a
shell word for word, or, where that is no command, the remedy of the registry (marked *).  `why --since-change` is asked
until it answers, and the job measured for --long seconds again: what the two long stretches say is true.  A line a job:
the milliseconds of a step that the remedy should save (~ what the finding costs, where nothing is estimated) and saves,
of a step as `why` and as the long stretch saw it; after / before by --since-change, and in truth.  The estimate is to
be within 20 % of what is saved in 10 of 12 jobs, and the interval to hold the truth in 11 of 12.
"""

from __future__ import annotations

import argparse
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

from targets.sick.registry import JOBS, Job
from until import until

import probe
from probe.diagnose.change.report import Change
from probe.errors import ProbeError, SilentError
from target import PROBE, Target

NEAR, NEAR_IN, HELD_IN = 0.2, 10 / 12, 11 / 12
WARM_S = 3.0  # the first steps import and allocate
PATIENCE_S = 180.0  # for an answer, and for a change to take effect
NOT_YET = ("not-in-effect", "few-steps")
LAST = "SELECT step, start_ns / 1e9 + duration AS ended FROM python.step_trace WHERE duration IS NOT NULL AND rank = "
LAST += "(SELECT MIN(rank) FROM python.step_trace) ORDER BY step DESC LIMIT 1"


class Failed(Exception):
    """A command of ours said no."""


class Run(NamedTuple):
    """Seconds a step.  code: of the finding; saves: by its estimate, costs: by the finding; is_printed: whether the
    remedy was; watched: by why, before, after: of the long stretches; change: what --since-change said."""

    job: Job
    code: str
    saves: float | None
    costs: float | None
    is_printed: bool
    watched: float
    before: float
    after: float
    change: Change

    @property
    def gain(self) -> float:
        return self.before - self.after

    @property
    def is_near(self) -> bool | None:
        """Whether the estimate is as good as it should be; None without one."""
        return None if self.saves is None else abs(self.saves - self.gain) <= NEAR * abs(self.gain)

    @property
    def is_held(self) -> bool:
        """Whether the interval holds the truth."""
        step = self.change.step
        return (step.ratio_low or 0.0) <= self.after / self.before <= (step.ratio_high or 0.0)


def main() -> int:
    options = arguments()
    jobs = [job for job in JOBS if job.remedy and job.name.startswith(options.only)]
    runs: list[Run] = []
    print(f"{'job':<29} {'finding':<22} {'saves ms, of a step of':>27}  {'after / before':<32} true")
    for job in jobs * options.rounds:
        try:
            runs.append(cured(job, options.long, options.read))
        except (Failed, ProbeError, AssertionError) as error:
            print(f"{job.name:<29} FAILED {error}", flush=True)
        else:
            print(line(runs[-1]), flush=True)
    near = [run.is_near for run in runs if run.is_near is not None]
    held = [run.is_held for run in runs]
    print(
        f"estimate within {NEAR:.0%}: {sum(near)} of {len(near)}; interval holds the truth: {sum(held)} of {len(held)}"
    )
    whole = len(runs) == len(jobs) * options.rounds
    return 0 if whole and sum(near) >= NEAR_IN * len(near) and sum(held) >= HELD_IN * len(held) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda words: tuple(words.split(",")), default="", help="beginnings of names")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--long", type=float, default=60.0, help="seconds of each long stretch")
    parser.add_argument("--read", type=float, default=20.0, help="seconds from what why says to the remedy")
    return parser.parse_args()


def cured(job: Job, long_s: float, read_s: float) -> Run:
    """A job from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        target = Target(("env", "--chdir", folder, *job.command), Path(folder) / "output", {})
        try:
            target.wait_for("ready", job.ranks)
            pid = str(target.pid)
            told(pid, "attach")
            time.sleep(WARM_S)
            before = mean_step(pid, long_s)
            report = json.loads(told(pid, "why", "--json"))
            finding = next((each for each in all_of(report["findings"]) if each["code"] in job.codes), None)
            if finding is None:
                raise Failed(f"not found: {report['verdict']['sentence']}")
            time.sleep(read_s)
            is_printed = apply(pid, finding, job)
            change = changed(pid)
            return Run(job, finding["code"], saved(report, finding), finding["seconds_per_step"], is_printed,
                       report["step_s"], before, mean_step(pid, long_s), change)  # fmt: skip
        finally:
            target.end()


def all_of(findings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for finding in findings for each in (finding, *all_of(finding["consequences"]))]


def saved(report: dict[str, Any], finding: dict[str, Any]) -> float | None:
    return report["step_s"] - finding["estimate"]["step_s"] if finding["estimate"] else None


def apply(pid: str, finding: dict[str, Any], job: Job) -> bool:
    """Cures the job, as a user would; whether what was printed does."""
    printed = finding["try"] or ""
    is_printed = printed.startswith("probe ") and " eval " in printed
    if is_printed:
        path = f"{PROBE.parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(["sh", "-c", printed], env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=PATIENCE_S)  # fmt: skip
        if done.returncode:
            raise Failed(f"{printed}: {done.stderr.strip()}")
    else:
        told(pid, "eval", job.remedy)
    return is_printed


def changed(pid: str) -> Change:
    """What --since-change says as soon as it says anything."""

    def asked() -> Change | None:
        try:
            with probe.connect(pid) as job:
                return job.since_change()
        except SilentError as error:
            if error.code not in NOT_YET:
                raise
            return None

    return until(asked, PATIENCE_S, every_s=1.0)


def mean_step(pid: str, seconds: float) -> float:
    """Of all steps that end within that time, whatever is between them, on the first rank."""
    first, began = last_step(pid)
    time.sleep(seconds)
    last, ended = last_step(pid)
    if last == first:
        raise Failed(f"no step ended in {seconds:g} s")
    return (ended - began) / (last - first)


def last_step(pid: str) -> tuple[int, float]:
    with probe.connect(pid) as job:
        (row,) = job.query(LAST)
    return row["step"], row["ended"]


def told(pid: str, *words: str) -> str:
    done = subprocess.run([str(PROBE), words[0], pid, *words[1:]], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=PATIENCE_S)  # fmt: skip
    if done.returncode:
        raise Failed(f"{words[0]}: {done.stderr.strip()}")
    return done.stdout


def line(run: Run) -> str:
    expected, of = run.saves, ""
    if expected is None:
        expected, of = run.costs or 0.0, "~"
    of += f"{ms(expected)} / {ms(run.gain)} of {ms(run.watched)} / {ms(run.before)}"
    step = run.change.step
    ratio = f"{step.ratio:.3f} ({step.ratio_low:.3f} to {step.ratio_high:.3f})"
    near = {True: "near", False: "FAR", None: ""}[run.is_near]
    steps = f"{step.steps_before} + {step.steps_after} steps"
    return (
        f"{run.job.name:<29} {run.code + '*' * (not run.is_printed):<22} {of:>27} {near:<4} {ratio} {steps:<17} "
        f"{run.after / run.before:.3f} {'held' if run.is_held else 'NOT HELD'}"
    )


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


if __name__ == "__main__":
    sys.exit(main())
