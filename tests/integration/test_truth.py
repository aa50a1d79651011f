"""What the tables say against what the job's own clock and torch's own counters say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from until import until

from target import Probe, Start, Target

pytestmark = pytest.mark.alone  # it looks at the clock

JOB = Path(__file__).parent.parent / "acceptance" / "document" / "job.py"
STAGES = ("forward", "backward", "step")


def measurements(file: Path) -> dict[int, list[float]]:
    """The job's own times: seconds of each stage by step."""
    return {step: times for step, *times in map(json.loads, file.read_text().splitlines())}


def test_the_sum_of_each_stage_matches_what_the_loop_measures(start: Start, probe: Probe, tmp_path: Path) -> None:
    file = tmp_path / "times"
    job = start("clocked.py", str(file))
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=1")
    first = len(file.read_text().splitlines())
    until(lambda: len(file.read_text().splitlines()) >= first + 60, 60)
    sql = "SELECT step, stage, SUM(duration) AS seconds FROM python.torch_trace GROUP BY ALL"
    rows = json.loads(probe(job.pid, "query", "--format", "json", sql).stdout)
    last = max(row["step"] for row in rows)
    measured = until(lambda: times if last in (times := measurements(file)) else None)  # written after the step's end
    ratios = [row["seconds"] / measured[row["step"]][STAGES.index(row["stage"])] for row in rows]
    assert len(ratios) >= 3 * 50
    # A core that is taken away between two clocks spoils a step now and then; the rest must agree.
    assert sum(0.95 <= ratio <= 1.05 for ratio in ratios) >= 0.95 * len(ratios), sorted(ratios)


def rows(job: Target, probe: Probe, sql: str) -> list[dict[str, Any]]:
    return list(json.loads(probe(job.pid, "query", "--format", "json", sql).stdout))


def test_the_reducers_all_reduces_match_its_buckets(start: Start, probe: Probe) -> None:
    job = start(JOB, ranks=2)
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=1")
    buckets = probe(job.pid, "eval", "train_model._get_ddp_logging_data()['rebuilt_bucket_sizes']").stdout
    sizes = sorted(int(size) for size in buckets.splitlines()[-1].strip("'").split(","))
    both = "SELECT COUNT(*) AS ranks, MAX(first) AS step FROM ({}) WHERE first IS NOT NULL"
    firsts = both.format("SELECT MIN(step) AS first FROM python.torch_trace GROUP BY rank")
    first = until(lambda: found if (found := rows(job, probe, firsts)[0])["ranks"] == 2 else None)
    sql = f"""SELECT rank, step, LIST(bytes ORDER BY bytes) AS sizes, COUNT(duration_ms) AS timed
        FROM python.nccl_trace WHERE operation_type = 'all_reduce' AND step >= {first["step"]} + 2
        AND step <= (SELECT MAX(step) FROM python.torch_trace) GROUP BY ALL"""
    found = until(lambda: found if len(found := rows(job, probe, sql)) > 20 else None)
    assert len(found) > 20 and {row["rank"] for row in found} == {0, 1}
    assert all(row["sizes"] == sizes and row["timed"] == len(sizes) for row in found), (sizes, found)
