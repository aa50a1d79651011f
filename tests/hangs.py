"""A job of tests/targets/hanging.py, and what `probe hang` says about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from until import states, until

from target import PROBE, Start, Target

QUIET_S = 4.5  # more than a job may be quiet
PAUSE_S = 1.0  # for snippets, twice before it hangs


def started(*words: str | int, status: int | None = 0) -> subprocess.CompletedProcess[str]:
    """As the fixture `probe` runs the command, but started afresh."""
    done = subprocess.run([str(PROBE), *map(str, words)], capture_output=True, text=True, timeout=60)
    assert status is None or done.returncode == status, done.stderr
    return done


class Job:
    """The launcher and its two ranks, asked by commands that `run` runs."""

    def __init__(self, target: Target, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
        self._target, self._run = target, run

    @property
    def pid(self) -> int:
        return self._target.pid

    def wait_for(self, word: str) -> None:
        """Until both ranks have said it."""
        self._target.wait_for(word, times=2)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [str(PROBE), str(self._target.pid), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def probe(self, *words: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self._run(self._target.pid, *words, status=status)

    def ranks(self) -> list[int]:
        with open(f"/proc/{self._target.pid}/task/{self._target.pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]

    def stop_rank(self, rank: int) -> None:
        """Between two of its steps, and before the other rank ends its next one."""
        pid = self.ranks()[rank]
        if set(states(pid)) != {"T"}:
            os.kill(pid, signal.SIGUSR1)
        until(lambda: set(states(pid)) == {"T"})

    def hang(self) -> None:
        """Both ranks, after the same step."""
        os.kill(self.ranks()[0], signal.SIGUSR2)


def hanging(
    start: Start, attached_before: Mapping[str, bool], without_recorder: str = "",
    run: Callable[..., subprocess.CompletedProcess[str]] = started,
) -> dict[str, Job]:  # fmt: skip
    """Jobs by their kind, all at once, attached, that have hung for some seconds; "healthy_…" ones never hang."""
    jobs = {}
    for kind in attached_before:
        env = {"TORCH_FR_BUFFER_SIZE": "0"} if kind == without_recorder else {}
        jobs[kind] = Job(start("hanging.py", kind, ready="", ranks=2, env=env), run)

    def let_it_hang(kind: str) -> None:
        job = jobs[kind]
        job.wait_for("trains")
        if attached_before[kind]:
            job.probe("attach")
            for _ in range(2):
                job.probe("eval", f"import time; time.sleep({PAUSE_S})")
        job.hang()

    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(let_it_hang, jobs))
    for job in jobs.values():
        job.wait_for("hangs")
    time.sleep(QUIET_S)
    for kind, job in jobs.items():
        if not attached_before[kind]:
            job.probe("attach", status=None)  # one that is stopped cannot be
    return jobs


def told(job: Job) -> dict[str, Any]:
    """The report as an object."""
    report: dict[str, Any] = json.loads(job.probe("hang", "--json").stdout)
    return report
