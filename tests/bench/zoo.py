"""`probe why` on the zoo of tests/targets/sick: does it find what was planted, and leave healthy jobs alone?

python tests/bench/zoo.py [--only NAME,…] [--rounds 3] [--seconds S] [--ignore CODE,…] [--recorded]
    a minute a job and round

--only takes beginnings of names: input_bound,healthy.  A line a job: ok or WRONG, job, what was expected, the first
finding with its severity and share, the seconds until the verdict, and the machine's load.  On a machine that others
use, host-contention is true of every job: --ignore host-contention judges what is told beside it.  With --recorded a
job is also recorded, for a minute or longer, and the recording has to have the verdict of the job.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from targets.sick.registry import JOBS, Job, without

from target import PROBE, Target

WARM_S = 2.0  # the first steps import and allocate
PATIENCE_S = 120.0  # for a verdict
WANTED_S = 40.0  # a verdict is there by then
RIGHT = 87 / 90  # of the sick jobs
RECORDED_S = 60.0  # at least: a hang has to have stood for half a minute, and the recorder to have seen it


class Run(NamedTuple):
    """job; right: whether `why` said what is so; took_s: until it did; said: its report, or what it printed instead;
    recorded: likewise of the recording."""

    job: Job
    right: bool
    took_s: float
    said: dict[str, Any] | str
    recorded: dict[str, Any] | str | None = None


def main() -> int:
    options = arguments()
    jobs = [job for job in JOBS if job.name.startswith(options.only)]
    runs = []
    for _ in range(options.rounds):
        for job in jobs:
            runs.append(judged(job, options.seconds, options.ignore - {*job.codes}, options.recorded))
            print("\n".join(lines(runs[-1])), flush=True)
    told = [run for run in runs if run.recorded is not None]
    alike = sum(is_alike(run) for run in told)
    if told:
        print(f"recordings: {alike} of {len(told)} have the verdict of the job")
    return 0 if all([good(runs, "sick", RIGHT), good(runs, "healthy", 1.0), alike == len(told)]) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda words: tuple(words.split(",")), default="", help="beginnings of names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="for which why watches; its own default otherwise")
    parser.add_argument("--ignore", type=lambda codes: {*codes.split(",")}, default=set(), help="findings not counted")
    parser.add_argument("--recorded", action="store_true", help="also ask a recording of each job")
    return parser.parse_args()


def judged(job: Job, seconds: float | None, ignored: set[str], is_recorded: bool) -> Run:
    """A job from its start to its end."""
    if not job.can_run:
        return Run(job, False, 0.0, f"not run: needs make {job.needs}")
    watch = () if seconds is None else ("--seconds", str(seconds))
    recorded: dict[str, Any] | str | None = None
    with tempfile.TemporaryDirectory() as folder:
        recorder = (str(PROBE), "run", "--record", f"{folder}/recorded", "--") if is_recorded else ()
        target = Target(("env", "--chdir", folder, *recorder, *job.command), Path(folder) / "output", {})
        began = time.monotonic()
        try:
            target.wait_for("ready", job.ranks)
            time.sleep(WARM_S)
            took_s, said = asked(target.pid, watch, Path(folder))
            said = without(said, ignored) if isinstance(said, dict) else said
            alive = target.alive
            if is_recorded:
                time.sleep(max(0.0, began + RECORDED_S - time.monotonic()))
                target.end()
                _, recorded = asked(f"{folder}/recorded", (), Path(folder))
                recorded = without(recorded, ignored) if isinstance(recorded, dict) else recorded
        except AssertionError as error:  # it did not start
            took_s, said, alive = 0.0, str(error), False
        finally:
            target.end()
    return Run(job, alive and isinstance(said, dict) and job.right(said), took_s, said, recorded)


def asked(of: int | str, watch: Sequence[str], folder: Path) -> tuple[float, dict[str, Any] | str]:
    """How long `why` took, and its report; files instead of pipes, which a process that it leaves may hold open."""
    answer, errors = folder / "answer", folder / "errors"
    began = time.monotonic()
    with answer.open("wb") as out, errors.open("wb") as err:
        try:
            command = [str(PROBE), "why", str(of), *watch, "--json"]
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return PATIENCE_S, "no verdict"
    took_s = time.monotonic() - began
    try:
        return took_s, dict(json.loads(answer.read_text()))
    except ValueError:
        return took_s, errors.read_text()[-500:].strip() or "nothing said"


def lines(run: Run) -> list[str]:
    """What is printed of a run; more of one that went wrong."""
    if not run.job.can_run:
        return [f"{'-':<6}{run.job.name:<30} {run.said}"]
    expected = "/".join(run.job.codes) or "healthy"
    word = "ok" if run.right else "WRONG"
    first, *others = [figures(finding) for finding in findings(run)] or [verdict(run.said)]
    late = f" > {WANTED_S:g}" if run.took_s > WANTED_S else ""
    load = f"load {os.getloadavg()[0]:.1f}"
    told = [f"{word:<6}{run.job.name:<30} {expected:<22} {first:<40} {run.took_s:5.1f} s{late}  {load}"]
    if not run.right:
        told += [f"{'':6}{sentence(run)}", *(f"{'':6}also {other}" for other in others)]
    if run.recorded is not None:
        what = verdict(run.recorded) if isinstance(run.recorded, dict) else run.recorded
        told.append(f"{'' if is_alike(run) else 'WRONG':6}recorded: {what}, live: {verdict(run.said)}")
    return told


def is_alike(run: Run) -> bool:
    return isinstance(run.recorded, dict) and verdict(run.recorded) == verdict(run.said)


def findings(run: Run) -> list[dict[str, Any]]:
    return run.said.get("findings", []) if isinstance(run.said, dict) else []


def figures(finding: dict[str, Any]) -> str:
    share = finding["share"]
    return f"{finding['code']} {finding['severity']}" + (f" {share:.0%}" if share is not None else "")


def verdict(said: dict[str, Any] | str) -> str:
    return str(said["verdict"]["code"]) if isinstance(said, dict) else "no report"


def sentence(run: Run) -> str:
    return str(run.said["verdict"]["sentence"]) if isinstance(run.said, dict) else run.said


def good(runs: Iterable[Run], sort: str, least: float) -> bool:
    """Prints how many of this sort are right; whether so large a part of them is."""
    those = [run for run in runs if bool(run.job.codes) == (sort == "sick")]
    right, quick = sum(run.right for run in those), sum(run.took_s <= WANTED_S for run in those)
    print(f"{sort}: {right} of {len(those)} right, {quick} of {len(those)} within {WANTED_S:g} s")
    return right >= least * len(those)


if __name__ == "__main__":
    sys.exit(main())
