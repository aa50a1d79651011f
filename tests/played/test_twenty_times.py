"""A training with captures, side streams and forked workers is attached to and left again, many times over."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from played import Play, Played

from target import Probe

TIMES, FEW = int(os.environ.get("TIMES", "20")), 5
MANY = [pytest.param(ranks, TIMES, marks=pytest.mark.long) for ranks in (1, 2)]


@pytest.mark.timeout(300 + 30 * TIMES)
@pytest.mark.parametrize(("ranks", "times"), [(2, FEW), *MANY])
def test_no_rule_is_broken_and_nothing_stays(play: Play, probe: Probe, tmp_path: Path, ranks: int, times: int) -> None:
    over = tmp_path / "over"
    job = play("training.py", "everything", "10", "--until", str(over), ranks=ranks)
    left = []
    for _ in range(times):
        used(job, probe)
        left.append(least_of(job))
    assert left[-1] == left[1]
    over.touch()
    job.final(ranks)
    assert [each for each in job.broken() if each.rule != "context" or each.is_ours] == []


def used(job: Played, probe: Probe) -> None:
    pid = job.target.pid
    probe("attach", pid)
    probe(pid, "query", "SELECT stage, SUM(duration) FROM python.torch_trace GROUP BY 1")
    assert probe(pid, "eval", "1 + 1").stdout.endswith("2\n")
    assert "Not hung" in probe(pid, "hang").stdout
    probe(pid, "detach")


def least_of(job: Played) -> list[int]:
    """Threads and descriptors of each rank, as few as there are in two seconds: a loader has some while it works."""
    seen = []
    for _ in range(40):
        folders = [Path(f"/proc/{pid}") for pid in job.pids()]
        seen.append([len(os.listdir(folder / what)) for folder in folders for what in ("task", "fd")])
        time.sleep(0.05)
    return [min(counts) for counts in zip(*seen, strict=True)]
