"""What the tables say against what the job's own clock and torch's own counters say."""

from __future__ import annotations

import json
import time
from pathlib import Path

from target import Probe, Start

STAGES = ("forward", "backward", "step")


def test_the_sum_of_each_stage_is_what_the_loop_measures(start: Start, probe: Probe, tmp_path: Path) -> None:
    file = tmp_path / "times"
    job = start("clocked.py", str(file))
    probe("attach", job.pid)
    end = time.monotonic() + 60
    first = len(file.read_text().splitlines())
    while len(file.read_text().splitlines()) < first + 60:
        assert time.monotonic() < end
        time.sleep(0.1)
    sql = "SELECT step, stage, SUM(duration) AS seconds FROM python.torch_trace GROUP BY ALL"
    rows = json.loads(probe(job.pid, "query", "--format", "json", sql).stdout)
    measured = {step: times for step, *times in map(json.loads, file.read_text().splitlines())}
    ratios = [row["seconds"] / measured[row["step"]][STAGES.index(row["stage"])] for row in rows]
    assert len(ratios) >= 3 * 50
    # A core that is taken away between two clocks spoils a step now and then; the rest must agree.
    assert sum(0.95 <= ratio <= 1.05 for ratio in ratios) >= 0.95 * len(ratios), sorted(ratios)
