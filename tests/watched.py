"""A job of tests/frameworks/job.py that is attached to, asked, left and attached to again in the midst of its steps."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from target import Probe, Start, Target

JOB = Path(__file__).parent / "frameworks" / "job.py"


def final(job: Target, ranks: int) -> list[str]:
    return sorted(re.findall(r"final (\d+ \d+ \w+)", job.wait_for("final", times=max(1, ranks))))


def watched(
    start: Start, probe: Probe, folder: Path, style: str, ranks: int = 0
) -> tuple[list[str], list[tuple[int, int]], Any]:
    """What the job says at its end, pairs (the job's own step, ours) at boundaries, and probe.agents."""
    job = start(JOB, style, str(folder / "hurry"), ranks=ranks)
    pid, pairs = job.pid, []
    for evals in (2, 1):
        probe("attach", pid)
        for _ in range(evals):
            before = time.monotonic()
            done = probe(pid, "eval", "import __main__; print('own', __main__.global_step)")
            assert time.monotonic() - before < 10
            own = {int(number) for number in re.findall(r"own (\d+)", done.stdout)}
            assert len(own) == 1, done.stdout
            pairs.append((own.pop(), rows(probe, pid, "SELECT MAX(step) AS step FROM probe.evals")[0]["step"]))
        agents = rows(probe, pid, "SELECT * FROM probe.agents")
        assert rows(probe, pid, "SELECT count(*) AS n FROM python.torch_trace")[0]["n"] > 0
        probe(pid, "detach")
    assert "final" not in job.output, "the job ended before all was asked"
    (folder / "hurry").touch()
    return final(job, ranks), pairs, agents


def rows(probe: Probe, pid: int, sql: str) -> Any:
    return json.loads(probe(pid, "query", "--format", "json", sql).stdout)


def alone(start: Start, style: str, ranks: int = 0) -> list[str]:
    return final(start(JOB, style, ranks=ranks), ranks)
