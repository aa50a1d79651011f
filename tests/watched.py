"""A job of tests/frameworks/job.py that is attached to, asked, set, left and attached to again while it trains."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from until import until

from target import Probe, Start, Target

JOB = Path(__file__).parent / "frameworks" / "job.py"
SETTINGS = ("sample=1", "sample=5", "sample=auto", "budget=0.5%", "backward=off", "backward=on")
OWN_STEP = "import __main__; print('own', __main__.global_step)"
OUR_STEPS = "SELECT step FROM probe.evals WHERE rank = 0 ORDER BY start_ns"
ROWS = "SELECT stage, COUNT(*) AS n, SUM(duration) FROM python.torch_trace GROUP BY ALL"


@dataclass(frozen=True)
class Watched:
    """What was seen of a job: its last words, pairs (its own step, ours) at boundaries, and probe.agents."""

    end: list[str]
    pairs: list[tuple[int, int]]
    agents: list[dict[str, Any]]


def watched(
    start: Start, probe: Probe, folder: Path, style: str, ranks: int = 0, eval_words: tuple[str, ...] = ()
) -> Watched:
    """Every setting, queries and evals; then out and in again, to the end of the job."""
    job = start(JOB, style, str(folder / "hurry"), ranks=ranks, torchrun=True)
    pairs = []
    for settings in (SETTINGS, ()):
        probe("attach", job.pid)
        own = [own_step(probe, job.pid, eval_words)]
        for setting in settings:
            probe(job.pid, "set", setting)
        if settings:
            until(lambda: rows(probe, job.pid, ROWS))  # a call is a step after two seconds of nothing else
            own.append(own_step(probe, job.pid, eval_words))
        pairs += zip(own, (row["step"] for row in rows(probe, job.pid, OUR_STEPS)), strict=True)
        agents = rows(probe, job.pid, "SELECT * FROM probe.agents")
        if settings:
            probe(job.pid, "detach")
    assert "final" not in job.output, "the job ended before all was asked"
    (folder / "hurry").touch()
    return Watched(final(job, ranks), pairs, agents)


def own_step(probe: Probe, pid: int, words: tuple[str, ...]) -> int:
    """The step as the job counts, by an eval that changes nothing; all ranks say the same."""
    done = probe(pid, "eval", *words, OWN_STEP)
    own = {int(number) for number in re.findall(r"own (\d+)", done.stdout)}
    assert len(own) == 1, done.stdout
    return own.pop()


def rows(probe: Probe, pid: int, sql: str) -> Any:
    return json.loads(probe(pid, "query", "--format", "json", sql).stdout)


def final(job: Target, ranks: int) -> list[str]:
    return sorted(re.findall(r"final (\d+ \d+ [0-9a-f]{16})", job.wait_for("final", times=max(1, ranks))))
