"""Training of every kind that is attached to: its weights stay, bit by bit, and `step` is its own number.

TARGET_PYTHON runs the jobs on another Python; a job for which that lacks a package is skipped.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from watched import JOB, final, watched

from target import PYTHON, Probe, Start


@dataclass(frozen=True)
class Job:
    """step_source None: nothing says where the steps of such a job begin."""

    style: str
    ranks: int = 0
    needs: str = "torch"
    step_source: str | None = "optimizer"
    eval_words: tuple[str, ...] = ()


JOBS = (
    *(Job(style) for style in ("one", "scheduler", "accumulation", "scaler", "two", "gan")),
    Job("lbfgs", step_source="attach"),
    Job("sgd_scheduler", step_source="scheduler"),
    Job("inference", step_source=None, eval_words=("--now",)),  # without an optimizer there is no boundary
    *(Job(style, ranks=2) for style in ("zero", "fsdp1")),
    Job("fsdp2", ranks=2, needs="torch.distributed.fsdp._fully_shard"),  # before torch 2.6 it runs on devices only
    *(Job("acceptance", ranks) for ranks in (0, 2)),
    Job("mlp", step_source="attach"),
    *(Job(workload) for workload in ("gpt15", "gpt100", "cnn")),
    Job("transformer", needs="transformers"),
    *(Job(style, needs="transformers") for style in ("transformers", "transformers_accumulation")),
    Job("accelerate", needs="accelerate"),
    Job("transformers_sgd", needs="transformers", step_source="trainer"),
    *(Job(style, needs="lightning") for style in ("lightning", "lightning_manual")),
    Job("lightning_sgd", needs="lightning", step_source="trainer"),
)


@cache
def has(package: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([PYTHON, "-c", code]).returncode == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.style}-{job.ranks or 1}")
def test_the_weights_stay_and_the_step_is_the_jobs_own(start: Start, probe: Probe, tmp_path: Path, job: Job) -> None:
    if not has(job.needs):
        pytest.skip(f"not run: {job.style} needs {job.needs}, which {PYTHON} has not")
    alone = start(JOB, job.style, ranks=job.ranks, torchrun=True, ready="")
    seen = watched(start, probe, tmp_path, job.style, job.ranks, job.eval_words)
    assert seen.end == final(alone, job.ranks) and len(seen.end) == max(1, job.ranks)
    ahead = [own - ours for own, ours in seen.pairs]
    if job.step_source == "attach":
        assert ahead[0] == ahead[1]  # by the count of the first attach
    elif job.step_source is not None:
        assert ahead == [0] * len(ahead)
    if job.step_source is not None:
        assert {agent["step_source"] for agent in seen.agents} == {job.step_source}


def test_every_style_and_every_workload_is_in_the_table() -> None:
    folder = JOB.parent
    named = {name for file in folder.glob("*.py") for name in re.findall(r"@.*style\ndef (\w+)", file.read_text())}
    workloads = (folder.parent / "bench" / "workloads.py").read_text().partition("WORKLOADS:")[2]
    assert {job.style for job in JOBS} == named | set(re.findall(r'^    "(\w+)":', workloads, re.MULTILINE))
