"""A job that steps when it is told to: the process in which a workload is measured.

    python worker.py WORKLOAD

Reads one JSON command a line from stdin and answers each with one line.  {"steps": n, "warm": m} runs m + n steps; the
answer is the n times in ns.  {"put": name} and {"take": name} put in and take out an instrument of instruments.py; the
answer to the second is how much it recorded.  The one invariant: between two commands no step runs, and a command is
read between two iterations of the job's own loop.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import torch
from calls import CALLS
from instruments import INSTRUMENTS, Instrument
from workloads import WORKLOADS, acceptance_job


class Gate:
    """The job calls passed() after every step; there it waits for the next command once a block is done."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print is no answer
        self._ends: list[int] = []
        self._left = 0
        self._steps = 0
        self._in: dict[str, Instrument] = {}
        self._stepped: Callable[[], None] | None = None  # of an instrument that the loop has to tell

    def passed(self) -> None:
        if self._stepped is not None:
            self._stepped()
        self._ends.append(perf_counter_ns())
        self._left -= 1
        if self._left <= 0:
            self._wait()

    def _wait(self) -> None:
        if self._steps:
            ends = self._ends[-self._steps - 1 :]
            self._answer([after - before for before, after in pairwise(ends)])
            self._steps = 0
        for line in sys.stdin:
            command: dict[str, Any] = json.loads(line)
            if "steps" in command:
                self._steps, self._left = command["steps"], command["steps"] + command["warm"]
                self._ends = [perf_counter_ns()]
                return
            self._answer(self._do(command))
        os._exit(0)  # whoever drove this is gone

    def _do(self, command: dict[str, Any]) -> int | None:
        if "put" in command:
            instrument = self._in[command["put"]] = INSTRUMENTS[command["put"]]()
            self._stepped = getattr(instrument, "stepped", None)
            return None
        self._stepped = None
        return self._in.pop(command["take"]).take()

    def _answer(self, value: object) -> None:
        self._answers.write(json.dumps(value) + "\n")


def drive_acceptance_job(gate: Gate) -> None:
    """The job's own main(), with the gate behind each of its steps."""
    job = acceptance_job()
    job.Tokens.__init__.__defaults__ = (1 << 40,)  # as it is, its data end after a quarter of an hour
    step = job.Trainer.train_step

    def gated_step(self: Any) -> Any:
        loss = step(self)
        gate.passed()
        return loss

    job.Trainer.train_step = gated_step
    job.main()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = sys.argv.pop(1)
    gate = Gate()
    if workload == "acceptance":
        drive_acceptance_job(gate)
        return
    step = (WORKLOADS | CALLS)[workload]()
    while True:
        step()
        gate.passed()


if __name__ == "__main__":
    main()
