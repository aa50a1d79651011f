"""How each tool is asked about a job of the zoo, as its own documentation has it; for `what_peers_say.py`.

Each function takes a job, an environment with the peers and a folder, and gives an Answer.  The one invariant: no
process that it started is left.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flames import flame
from targets.sick.registry import HERE, Job
from until import until

from target import PROBE, START_S, Target

WARM_S = 2.0  # the first steps import and allocate
WATCH_S = 25.0  # as long as `probe why` watches
PATIENCE_S = 300.0
PEERS = ("traceml-ai", "py-spy", "probing==0.2.4")
EDITS = Path(__file__).parent / "traceml.patch"
PREPARED = {"PROBING": "2", "PROBING_TORCH_PROFILING": "on"}  # 2: in the ranks too
PROFILE = """
SELECT module, stage, COUNT(*) as executions, AVG(duration) as avg_time_sec, SUM(duration) as total_time_sec,
       SUM(duration) * 100.0 / SUM(SUM(duration)) OVER () as pct_time
FROM python.torch_trace WHERE step > (SELECT MAX(step) - 10 FROM python.torch_trace)
GROUP BY module, stage ORDER BY total_time_sec DESC LIMIT 15"""
STEPS = """
SELECT step, SUM(CASE WHEN stage = 'forward' THEN duration ELSE 0 END) as forward_time,
       SUM(CASE WHEN stage = 'backward' THEN duration ELSE 0 END) as backward_time,
       SUM(CASE WHEN stage = 'step' THEN duration ELSE 0 END) as optimizer_time
FROM python.torch_trace WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace) GROUP BY step ORDER BY step"""
MEMORY = "SELECT step, AVG(allocated) as avg_memory FROM python.torch_trace GROUP BY step ORDER BY step LIMIT 5"
WORKERS = """
print(f'Num workers: {train_loader.num_workers}')
print(f'Pin memory: {train_loader.pin_memory}')"""
RSS = "import psutil; print(f'CPU Memory: {psutil.Process().memory_info().rss / 1024**3:.2f} GB')"
ASKED_OF_PROBING = (
    ("backtrace",), ("backtrace",), ("backtrace",),  # a moment each; its documentation wants one
    ("query", PROFILE), ("query", STEPS), ("query", MEMORY), ("eval", WORKERS), ("eval", RSS),
)  # fmt: skip


class Answer(NamedTuple):
    """said: what it printed, or what of it a person reads; took_s: from asking to that, with every restart of the job
    that it takes; needed: `nothing`, or what had to be done to the job first; raw: what `said` was made of; load: the
    machine's, when the job was started."""

    said: str
    took_s: float
    needed: str
    raw: str = ""
    load: float = 0.0


class Bench(NamedTuple):
    """python: the peers' environment's; folder: where a job runs and leaves its files."""

    python: Path
    folder: Path

    def tool(self, name: str) -> str:
        return str(self.python.parent / name)


def installed(folder: Path) -> Path:
    """The Python of an environment with the peers, made unless it is there; its torch is ours."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        torch = f"torch=={version('torch').partition('+')[0]}"
        subprocess.run([python, "-m", "pip", "install", "--quiet", torch, "psutil", *PEERS], check=True)
    return python


@contextmanager
def running(job: Job, bench: Bench, python: str = sys.executable, **environment: str) -> Iterator[Target]:
    """The job as the zoo has it, once it trains."""
    words = [python if word == sys.executable else word for word in job.command]
    target = Target(("env", "--chdir", str(bench.folder), *words), bench.folder / "output", environment)
    try:
        target.wait_for("ready", job.ranks)
        time.sleep(WARM_S)
        yield target
    finally:
        target.end()


def ranks(target: Target) -> list[int]:
    return sorted(int(pid) for pid in re.findall(r"ready (\d+)", target.output))


def printed(command: list[str]) -> str:
    """What a command printed, errors included; it has PATIENCE_S."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"no end in {PATIENCE_S:g} s"
    return (done.stdout + done.stderr).strip()


def why(job: Job, bench: Bench) -> Answer:
    with running(job, bench) as target:
        began = time.monotonic()
        said = printed([str(PROBE), "why", str(target.pid)])
        return Answer(said, time.monotonic() - began, "nothing")


def py_spy(job: Job, bench: Bench) -> Answer:
    """`dump` of a job that hangs, as its README says; otherwise `record`."""
    with running(job, bench) as target:
        began = time.monotonic()
        if "hung" in job.codes:
            said, raw = (
                "\n".join(printed([bench.tool("py-spy"), "dump", "--pid", str(pid)]) for pid in ranks(target)),
                "",
            )
        else:
            said, raw = recorded(target.pid, bench)
        return Answer(said, time.monotonic() - began, "nothing", raw)


def recorded(pid: int, bench: Bench) -> tuple[str, str]:
    """The flame graph's wide frames, and its data; of all processes, those that wait included, or no wait is seen."""
    options = ["--idle", "--subprocesses", "--function", "--format", "raw", "--duration", f"{WATCH_S:g}"]
    file = bench.folder / "raw.txt"
    said = printed([bench.tool("py-spy"), "record", *options, "-o", str(file), "--pid", str(pid)])
    raw = file.read_text() if file.exists() else ""
    return flame(raw) or said, raw


def traceml(job: Job, bench: Bench) -> Answer:
    """A copy with the edits of traceml.patch, started its way, trained for WATCH_S and ended with Ctrl-C."""
    script = edited(bench.folder / "edited") / job.script
    command = [bench.tool("traceml"), "run", str(script), "--run-name", "run", "--nproc-per-node", str(job.ranks)]
    began = time.monotonic()
    words = ("env", "--chdir", str(bench.folder), *command, "--args", job.name)
    target = Target(words, bench.folder / "output", {})
    try:
        until(lambda: len(ranks(target)) >= job.ranks, START_S, why=lambda: target.output)
        time.sleep(WATCH_S)
        os.kill(target.pid, signal.SIGINT)
        target.process.wait(PATIENCE_S)
        return Answer(card(target.output), time.monotonic() - began, "edited, restarted, ended", target.output)
    finally:
        target.end()


def edited(folder: Path) -> Path:
    """A copy of the zoo's jobs with what TraceML's quickstart wants in a loop."""
    if not folder.exists():
        shutil.copytree(HERE, folder / "sick", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(HERE.parent / "fast_import.py", folder)
        subprocess.run(["git", "apply", str(EDITS)], cwd=folder / "sick", check=True)
    return folder / "sick"


def card(output: str) -> str:
    """Its summary without the frame, or the last that it printed."""
    lines = [line.strip("| \n") for line in output.splitlines() if line.startswith("|")]
    return "\n".join(line for line in lines if line) or output[-2000:]


def probing(job: Job, bench: Bench) -> Answer:
    """Injected, as its README has it, or restarted with it where that fails; then what its pages ask in such cases."""
    with running(job, bench) as target:
        refused = [printed([bench.tool("probing"), "-t", str(pid), "inject"]) for pid in ranks(target)]
        if all("Failed" not in said for said in refused):
            return consulted(job, bench, target, time.monotonic(), "nothing")
    began = time.monotonic()
    with running(job, bench, str(bench.python), **PREPARED) as target:
        time.sleep(0 if "hung" in job.codes else WATCH_S - WARM_S)
        answer = consulted(job, bench, target, began, "restarted")
    return answer._replace(said=f"{refused[0]}\n\n{answer.said}")


def consulted(job: Job, bench: Bench, target: Target, began: float, needed: str) -> Answer:
    """What each rank answers, and what the job printed meanwhile: that is where eval's output goes."""
    before = len(target.output)
    told = [
        f"rank's pid {pid}: probing {' '.join(words)}\n{printed([bench.tool('probing'), '-t', str(pid), *words])}"
        for pid in ranks(target)
        for words in ASKED_OF_PROBING
    ]
    took_s = time.monotonic() - began
    return Answer("\n\n".join([*told, f"the job printed:\n{target.output[before:]}"]), took_s, needed)


TOOLS: Mapping[str, Callable[[Job, Bench], Answer]] = {
    "probe why": why, "TraceML": traceml, "py-spy": py_spy, "probing": probing,
}  # fmt: skip
