"""Every command of a performance guide that was written for another tool, run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from until import until

from target import PROBE, Probe, Start

NO_DRIVER = "Found no NVIDIA driver"  # so a CUDA build of torch puts what the runner expects of one without CUDA
DOCUMENT = Path(__file__).parent / "document"


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "ranks", [pytest.param(0, id="one process", marks=pytest.mark.soak), pytest.param(2, id="two ranks")]
)
def test_every_command_of_the_document_passes(short_folder: Path, start: Start, probe: Probe, ranks: int) -> None:
    env = {"TMPDIR": str(short_folder)}
    probe("--version")  # in a fresh clone the first command takes seconds, in which the job would come to step 100
    job = start("acceptance.py", "--sleep", "0.1", ranks=ranks, env=env)
    probe("attach", job.pid)
    reached = "SELECT COALESCE(MAX(step), 0) >= 215 AS reached FROM python.torch_trace"  # what the runner starts with
    until(lambda: "true" in probe(job.pid, "query", reached).stdout, 240, every_s=1)
    distributed = ["--distributed"] if ranks else []
    runner = [sys.executable, str(DOCUMENT / "seed_commands.py"), str(job.pid), "--probe", str(PROBE), *distributed]
    done = subprocess.run(runner, capture_output=True, text=True, timeout=400)
    right = re.findall(rf"^ok   .*|^FAIL .*{NO_DRIVER}.*", done.stdout, re.MULTILINE)
    assert len(right) == 19, done.stdout + done.stderr + job.output
    assert job.alive
