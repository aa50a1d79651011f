"""A job of tests/targets/hanging.py, and what `probe hang` says about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from delivering import states
from until import until

TARGETS = Path(__file__).parent / "targets"
PROBE = Path(sys.executable).parent / "probe"
QUIET_S = 4.5  # more than a job may be quiet


class Job:
    """The launcher and its two ranks."""

    def __init__(self, kind: str, recorder: bool = True) -> None:
        command = [sys.executable, str(TARGETS / "launcher.py"), "2", str(TARGETS / "hanging.py"), kind, "80"]
        self.launcher = subprocess.Popen(
            command,
            env=os.environ if recorder else os.environ | {"TORCH_FR_BUFFER_SIZE": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait_for(self, word: str) -> None:
        """Until both ranks have said it."""
        assert self.launcher.stdout is not None
        for _ in (0, 1):
            line = self.launcher.stdout.readline()
            assert line.strip() == word, line

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [str(PROBE), str(self.launcher.pid), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def probe(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [str(PROBE), str(self.launcher.pid), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=check)

    def ranks(self) -> list[int]:
        with open(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]

    def stop_rank(self, rank: int) -> None:
        """Between two of its steps, and before the other rank ends its next one."""
        pid = self.ranks()[rank]
        if set(states(pid)) != {"T"}:
            os.kill(pid, signal.SIGUSR1)
        until(lambda: set(states(pid)) == {"T"})

    def end(self) -> None:
        """Once or twice."""
        if self.launcher.poll() is not None:
            return
        for pid in self.ranks():
            os.kill(pid, signal.SIGKILL)
        self.launcher.kill()
        self.launcher.communicate()


@contextmanager
def hanging(attached_before: Mapping[str, bool], without_recorder: str = "") -> Iterator[dict[str, Job]]:
    """Jobs by their kind, all at once, attached, that have hung for some seconds; "healthy_…" ones never hang."""
    jobs = {kind: Job(kind, kind != without_recorder) for kind in attached_before}
    try:
        for kind, job in jobs.items():
            job.wait_for("trains")
            if attached_before[kind]:
                job.probe("attach")
        for job in jobs.values():
            job.wait_for("hangs")
        time.sleep(QUIET_S)
        for kind, job in jobs.items():
            if not attached_before[kind]:
                job.probe("attach", check=False)  # one that is stopped cannot be
        yield jobs
    finally:
        for job in jobs.values():
            job.end()


def told(job: Job) -> dict[str, Any]:
    """The report as an object."""
    report: dict[str, Any] = json.loads(job.probe("hang", "--json").stdout)
    return report
