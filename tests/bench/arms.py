"""A running job and what can be put into it: the arms that are compared.

A Job is a worker (worker.py) or the ranks of one, run block by block.  An Arm puts one thing into it and takes it out
again.  The one invariant: after take() the job is bare, and what was measured before and after may be compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

WORKER = Path(__file__).resolve().parent / "worker.py"
SETTLE_S = 3.0  # what an agent does once only: naming, kernels on c10d, learning what its taps cost
PEER = {"PROBING": "1"}  # what puts the peer into a process from its start
Times = list[int]  # of each step, ns


class WorkerEnded(Exception):
    """The job did, with an error of its own or by what was put into it."""


class Job:
    """A workload that has been built and waits; a context manager that ends it."""

    def __init__(self, workload: str, python: str, ranks: int = 1, **environment: str) -> None:
        command = [python, str(WORKER), workload]
        self.processes = [
            subprocess.Popen(
                command,
                env={**os.environ, **environment, **each},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for each in _ranks(ranks)
        ]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    @property
    def pids(self) -> list[str]:
        return [str(process.pid) for process in self.processes]

    def block(self, steps: int, warm: int = 0) -> Times:
        """Run warm + steps steps; the times of the last `steps`, of rank 0."""
        times: Times = self.ask(steps=steps, warm=warm)
        return times

    def ask(self, **command: Any) -> Any:
        """A command to all ranks, and what rank 0 answers."""
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its silence is noticed below
                process.stdin.write(json.dumps(command) + "\n")
                process.stdin.flush()
        answers = [process.stdout.readline() for process in self.processes if process.stdout is not None]
        if not all(answers):
            raise WorkerEnded(f"before it answered {command}; run {WORKER} by hand to see why")
        return json.loads(answers[0])


def _ranks(count: int) -> list[dict[str, str]]:
    """The environment of each rank."""
    if count == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


class Arm(Protocol):
    """peer: it needs a job that was started with the peer in it; agent: one in which our agent is.

    warm: steps until it does what it is to do.
    """

    peer: bool
    agent: bool
    warm: int

    def put(self, job: Job) -> None: ...
    def take(self, job: Job) -> None: ...


@dataclass(frozen=True)
class Nothing:
    """Bare against bare: an interval without 1 in it says that the run cannot be trusted."""

    peer: bool = False
    agent: bool = False
    warm: int = 0

    def put(self, job: Job) -> None: ...
    def take(self, job: Job) -> None: ...


@dataclass(frozen=True)
class Ours:
    """The agent, put in from outside by the command while the job steps.

    words: what is asked of it with `probe PID set`; none: what it does by itself.
    """

    probe: str
    words: tuple[str, ...] = ()
    peer: bool = False
    agent: bool = False
    warm: int = 0

    def put(self, job: Job) -> None:
        self._run(job, "attach", *job.pids)
        for pid in job.pids if self.words else ():
            self._run(job, pid, "set", *self.words)
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            job.block(1)

    def take(self, job: Job) -> None:
        for pid in job.pids:
            self._run(job, pid, "detach")

    def every(self, job: Job) -> int:
        """The N of which it samples every N-th block."""
        return int(json.loads(self._run(job, job.pids[0], "set", "--format", "json"))[0]["every"])

    def _run(self, job: Job, *words: str) -> str:
        """The job steps meanwhile: some of what comes and goes does so between two steps only."""
        command = subprocess.Popen([self.probe, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while command.poll() is None:
            job.block(1)
        said, wrong = command.communicate()
        if command.returncode:
            raise SystemExit(wrong)
        return said


@dataclass(frozen=True)
class Inside:
    """An instrument of instruments.py, which the worker itself puts in."""

    name: str
    peer: bool = False
    agent: bool = False
    warm: int = 0

    def put(self, job: Job) -> None:
        job.ask(put=self.name)

    def take(self, job: Job) -> None:
        if not job.ask(take=self.name):
            print(f"{self.name} recorded nothing", file=sys.stderr)


class Profiled:
    """The command `probe PID profile`, a hundred times a second, at a job in which our agent is."""

    peer, agent, warm = False, True, 0

    def __init__(self, probe: str) -> None:
        self._probe = probe
        self._command: subprocess.Popen[bytes] | None = None

    def put(self, job: Job) -> None:
        words = [self._probe, job.pids[0], "profile", "--rate", "100", "--seconds", "1000"]
        self._command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            job.block(1)

    def take(self, job: Job) -> None:
        assert self._command is not None
        if self._command.poll() is not None:
            raise SystemExit(f"the profile ended by itself, with {self._command.returncode}")
        self._command.send_signal(signal.SIGINT)
        while self._command.poll() is None:
            job.block(1)


NOTHING, BETWEEN, EVERYTHING = "nothing again", "probe between samples", "probe with everything"
ARMS = (NOTHING, BETWEEN, EVERYTHING, "probe profile", "plain hooks", "torch.profiler", "probing")


def arms(probe: str = "probe") -> dict[str, Arm]:
    """Name in the tables -> arm, all that the steps of a workload are timed with."""
    each: list[Arm] = [
        Nothing(),
        Inside("between samples", agent=True),
        Inside("everything", agent=True),
        Profiled(probe),
        Inside("hooks"),
        Inside("profiler", warm=2),  # its first step warms it up
        Inside("peer", peer=True, warm=3),  # it records from the third step on
    ]
    return dict(zip(ARMS, each, strict=True))
