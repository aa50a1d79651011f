"""What the tables say against what the job's own clock and torch's own counters say."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from target import Probe, Start, Target

pytestmark = pytest.mark.alone  # it looks at the clock

JOB = Path(__file__).parent.parent / "acceptance" / "document" / "job.py"
STAGES = ("forward", "backward", "step")


def test_the_sum_of_each_stage_is_what_the_loop_measures(start: Start, probe: Probe, tmp_path: Path) -> None:
    file = tmp_path / "times"
    job = start("clocked.py", str(file))
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=1")
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


def rows(job: Target, probe: Probe, sql: str) -> list[dict[str, Any]]:
    return list(json.loads(probe(job.pid, "query", "--format", "json", sql).stdout))


def test_the_reducers_all_reduces_are_its_buckets(start: Start, probe: Probe) -> None:
    job = start(JOB, ranks=2)
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=1")
    buckets = probe(job.pid, "eval", "train_model._get_ddp_logging_data()['rebuilt_bucket_sizes']").stdout
    sizes = sorted(int(size) for size in buckets.splitlines()[-1].strip("'").split(","))
    time.sleep(4)
    firsts = "(SELECT MIN(step) AS first FROM python.torch_trace GROUP BY rank)"
    first = rows(job, probe, f"SELECT MAX(first) AS step FROM {firsts}")
    found = rows(
        job,
        probe,
        f"""SELECT rank, step, LIST(bytes ORDER BY bytes) AS sizes, COUNT(duration_ms) AS timed
        FROM python.nccl_trace WHERE operation_type = 'all_reduce' AND step >= {first[0]["step"]} + 2
        AND step <= (SELECT MAX(step) FROM python.torch_trace) GROUP BY ALL""",
    )
    assert len(found) > 20 and {row["rank"] for row in found} == {0, 1}
    assert all(row["sizes"] == sizes and row["timed"] == len(sizes) for row in found), (sizes, found)
