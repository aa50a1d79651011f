"""`probe demo`."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from probe.errors import EndpointError, UsageError

from ..attaching import Wanted, attach_each, detach_all, ranks_of
from ..evaluating import evaluate
from ..output.formats import show
from ..session import connected, say

if TYPE_CHECKING:
    from probe.connection import Connection

JOB = Path(__file__).parent.parent / "demo_job.py"
RANKS = 2
START_S = 120.0  # torch alone takes seconds to import, more on a busy machine
END_S = 10.0
STEPS = 20  # rows of so many steps make the demo's averages
PR_SET_PDEATHSIG = 1  # prctl(2)
LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be imported

QUERIES = (
    (
        "Where does a step spend its time? (duration is self time; a block with its children: total_duration)",
        "SELECT module, stage, ROUND(AVG(duration) * 1e6) AS avg_us FROM python.torch_trace "
        "GROUP BY ALL ORDER BY avg_us DESC LIMIT 5",
    ),
    (
        "What do the ranks wait for?",
        "SELECT operation_type, rank, COUNT(*) AS count, SUM(bytes) AS bytes, AVG(duration_ms) AS avg_ms "
        "FROM python.nccl_trace GROUP BY ALL ORDER BY ALL",
    ),
    (
        "Which rank is the slower one, step by step?",
        "SELECT step, SUM(duration) FILTER (rank = 0) AS rank_0, SUM(duration) FILTER (rank = 1) AS rank_1 "
        "FROM python.torch_trace GROUP BY step ORDER BY step DESC LIMIT 5",
    ),
)
CODE = "print('loss', round(loss.item(), 2)); learning_rate"


@click.command("demo")
def command() -> None:
    """Show attach, query and eval on a small job of its own.

    It starts two processes that train a small model on the CPU, and ends them again.

    \b
    Example:
      probe demo
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("The demo trains a small model, and torch is not installed here.",
                         "Run: pip install torch-probe[torch]")  # fmt: skip
    with job() as pid:
        show_all(pid)
    click.echo("\nThe demo's job has ended. With a job of your own:\n")
    for words in ("list", "attach PID", 'PID query "SELECT …"', 'PID eval "print(model)"', "PID detach"):
        click.echo(f"  probe {words}")


def show_all(pid: int) -> None:
    """Attach to the job below pid, run each query and the eval behind the command that does the same, detach."""
    from ..output.arrow_result import ArrowResult

    prompt("attach", str(pid))
    attach_each(ranks_of([pid]), Wanted(), click.echo)
    with connected(str(pid)) as connection:
        wait_for_steps(connection)
        for question, sql in QUERIES:
            click.echo(f"\n# {question}")
            prompt(str(pid), "query", sql)
            show(ArrowResult(connection.query(sql)))
        click.echo("\n# Python inside the job: its local variables are there")
        prompt(str(pid), "eval", CODE)
        evaluate(connection, CODE)
        prompt(str(pid), "detach")
        detach_all(connection, click.echo)


def prompt(*words: str) -> None:
    quoted = (f'"{word}"' if " " in word else word for word in words)
    click.echo(f"$ probe {' '.join(quoted)}")


def wait_for_steps(connection: Connection) -> None:
    """Return once there are rows of STEPS steps.  Raises EndpointError when they do not come."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        table = connection.query("SELECT COUNT(DISTINCT step) AS steps FROM python.torch_trace")
        if table.column("steps")[0].as_py() >= STEPS:
            return
        time.sleep(0.2)
    raise EndpointError("The demo's job does not step.", "Try again when the machine is less busy.")


@contextmanager
def job() -> Iterator[int]:
    """The pid of a torchrun whose ranks have made their first step; at the end nothing of it is left.

    Its session is its own, so that Ctrl-C reaches this process alone, which then ends the job in order; and
    what the job and its agents leave in TMPDIR goes with that folder.
    """
    with tempfile.TemporaryDirectory(prefix="probe-demo-") as folder, open(f"{folder}/output", "w+") as output:
        torchrun = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
             "--nproc-per-node", str(RANKS), str(JOB)],
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_parent,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": folder},
        )  # fmt: skip
        try:
            wait_until_ready(torchrun, output)
            yield torchrun.pid
        finally:
            end(torchrun)


def wait_until_ready(torchrun: subprocess.Popen[bytes], output: IO[str]) -> None:
    """Return once each rank has said `ready`.  Raises EndpointError with the job's last line otherwise."""
    say(f"probe: starting a job of {RANKS} processes; importing torch takes some seconds")
    end = time.monotonic() + START_S
    text = ""
    while time.monotonic() < end and torchrun.poll() is None:
        output.seek(0)
        text = output.read()
        if text.count("ready") >= RANKS:
            return
        time.sleep(0.1)
    last = (text.strip().splitlines() or ["it printed nothing"])[-1]
    raise EndpointError(f"The demo's job did not start: {last}", "Is this torch a working one?")


def end(torchrun: subprocess.Popen[bytes]) -> None:
    """Have torchrun end its ranks; they end with it in any case (die_with_parent)."""
    torchrun.terminate()
    try:
        torchrun.wait(END_S)
    except subprocess.TimeoutExpired:
        torchrun.kill()
        torchrun.wait()


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
