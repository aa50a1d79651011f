"""`probe demo`."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probe.errors import EndpointError, SilentError, UsageError

from ...attaching import Wanted, attach_each, detach_all
from ...choosing import ranks_of
from ...evaluating import evaluate
from ...output.formats import Output
from ...output.parts import show_parts
from ...output.result import ArrowResult
from ...session import connected, say

if TYPE_CHECKING:
    from probe.connection import Connection

LAUNCHER, JOB = (str(Path(__file__).parents[2] / f"demo_{name}.py") for name in ("launcher", "job"))
RANKS = 2
START_S = 120.0  # torch alone takes seconds to import, more on a busy machine
END_S = 10.0
STEPS = 20  # the demo's averages are over at least so many steps
WATCH_S, WATCH_STEPS, STEPS_AFTER = 6, 60, 150  # it watches until it has both
PR_SET_PDEATHSIG = 1  # prctl(2)
LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be imported

QUERIES = {
    "Where does a step spend its time? (duration is self time; total_duration includes children)": (
        "SELECT module, stage, ROUND(AVG(duration) * 1e6) AS avg_us FROM python.torch_trace "
        "GROUP BY ALL ORDER BY avg_us DESC LIMIT 5"
    ),
    "What do the ranks wait for?": (
        "SELECT operation_type, rank, COUNT(*) AS count, SUM(bytes) AS bytes, AVG(duration_ms) AS avg_ms "
        "FROM python.nccl_trace GROUP BY ALL ORDER BY ALL"
    ),
    "Which rank is slower, step by step?": (
        "SELECT step, SUM(duration) FILTER (rank = 0) AS rank_0, SUM(duration) FILTER (rank = 1) AS rank_1 "
        "FROM python.torch_trace GROUP BY step HAVING COUNT(DISTINCT rank) = 2 ORDER BY step DESC LIMIT 5"
    ),
}
CODE = "print('loss', round(loss.item(), 2)); learning_rate"


@click.command("demo")
def command() -> None:
    """Try attach, query, eval and why on a small built-in job.

    It starts two processes that train a small model on the CPU, and ends them afterwards. Their loader is slow: why
    finds that, and the demo does what it proposes.

    \b
    Example:
      probe demo
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("The demo needs torch, which is not installed here.", "Run: pip install torch")
    with job() as pid:
        show_all(str(pid))
    click.echo("\nThe demo's job has ended. On a job of your own:\n")
    for words in ("list", "PID why", 'PID query "SELECT …"', 'PID eval "print(model)"', "PID detach"):
        click.echo(f"  probe {words}")


def show_all(pid: str) -> None:
    """Attach, run each query and the eval, and detach, each after a line with the command that does the same."""
    click.echo(f"$ probe attach {pid}")
    attach_each(ranks_of([int(pid)]), Wanted())
    with connected(pid) as connection:
        sql = "SELECT COUNT(DISTINCT step) AS steps FROM python.torch_trace"
        if not wait_until(lambda: connection.query(sql).column("steps")[0].as_py() >= STEPS):
            raise EndpointError(f"The demo's job made no {STEPS} steps.", "Try again on a less busy machine.")
        for question, sql in QUERIES.items():
            click.echo(f'\n# {question}\n$ probe {pid} query "{sql}"')
            Output().show(ArrowResult(connection.query(sql).table))
        click.echo(f'\n# Run Python inside the job, with its local variables\n$ probe {pid} eval "{CODE}"')
        evaluate(connection, CODE)
        show_why(connection, pid)
        click.echo(f"\n$ probe {pid} detach")
        detach_all(connection)


def show_why(connection: Connection, pid: str) -> None:
    """Find out why the job is slow, do what is proposed, and show what that has brought."""
    (row,) = connection.query("SELECT MEDIAN(duration) AS step_s FROM python.step_trace")
    watch_s = max(WATCH_S, math.ceil(WATCH_STEPS * row["step_s"]))
    click.echo(f"\n# Why is it slow?\n$ probe {pid} why --seconds {watch_s}")
    diagnosis = connection.why(watch_s)
    show_parts(diagnosis.parts())
    remedy = diagnosis.findings[0].finding.remedy if diagnosis.causes else ""
    if f"probe {connection.endpoint} eval " not in remedy:
        return
    code = remedy.partition(' eval "')[2].rstrip('"')
    click.echo(f"\n# Do what it proposes, and see what that brings\n$ {remedy}")
    evaluate(connection, code)
    click.echo(f"$ probe {pid} why --since-change")
    lines: list[str] = []

    def is_compared() -> bool:
        """Once the next epoch has begun and enough steps are over."""
        with suppress(SilentError):
            change = connection.since_change()
            lines[:] = change.lines()
            return change.steps_after >= STEPS_AFTER
        return False

    wait_until(is_compared)
    click.echo("\n".join(lines))


def wait_until(done: Callable[[], bool]) -> bool:
    """Whether it is done within START_S."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if done():
            return True
        time.sleep(0.1)
    return False


@contextmanager
def job() -> Iterator[int]:
    """The pid of a launcher whose ranks have finished their first step; at the end nothing of it is left.

    It runs in a session of its own, so that Ctrl-C reaches only this process, which then ends the job properly; what
    the job and its agents leave in TMPDIR is deleted with that folder.  Raises EndpointError if it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="probe-demo-") as folder, open(f"{folder}/output", "w+") as output:
        launcher = subprocess.Popen(
            [sys.executable, LAUNCHER, str(RANKS), JOB], stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(LIBC.prctl, PR_SET_PDEATHSIG, signal.SIGTERM),
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": folder},
        )  # fmt: skip
        said = Path(folder, "output").read_text
        try:
            say(f"probe: starting a job of {RANKS} processes; importing torch takes a few seconds")
            wait_until(lambda: said().count("ready") >= RANKS or launcher.poll() is not None)
            if said().count("ready") < RANKS:
                last = (said().strip().splitlines() or ["it printed nothing"])[-1]
                raise EndpointError(f"The demo's job did not start: {last}", "To check torch: python -c 'import torch'")
            yield launcher.pid
        finally:
            launcher.terminate()  # it ends its ranks, which end with it in any case
            try:
                launcher.wait(END_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
