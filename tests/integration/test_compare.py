"""`probe compare` on a real job: two stretches of its steps, before and after it became slower."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from until import until

from target import FAST_IMPORT, Probe, Start

pytest.importorskip("torch")

JOB = f"""{FAST_IMPORT}
import pathlib, sys, time, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
slower = pathlib.Path(sys.argv[1])
print("ready", flush=True)
while True:
    time.sleep(0.15 if slower.exists() else 0.005)  # by more than a busy machine explains
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
LAST = "SELECT COALESCE(MAX(step), 0) AS last, COUNT(duration) AS steps FROM python.step_trace"


@pytest.mark.long
def test_stretches_of_a_job_that_became_slower(start: Start, probe: Probe, tmp_path: Path) -> None:
    script, slower = tmp_path / "job.py", tmp_path / "slower"
    script.write_text(JOB)
    job = start(script, str(slower))
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=1")  # a stretch without a sampled step does not tell its samples

    def last() -> int:
        (row,) = json.loads(probe(job.pid, "query", "--json", LAST).stdout)
        return int(row["last"]) if row["steps"] >= 60 else 0

    until(last)
    change = last()
    slower.touch()
    until(lambda: last() >= change + 60)
    stretches = f"{job.pid}@1..{change - 1}", f"{job.pid}@{change + 10}..{change + 59}"
    told = probe("compare", *stretches, "--json", "--fail-if", "step_time > 20%", status=11)
    assert "[changed] Beyond the limit: step_time > 20%." in told.stderr
    found = json.loads(told.stdout)
    assert "step_time" in found["differs"] and found["step"]["ratio_low"] > 1.2 and found["assumed"] is None
    assert found["samples"]["after"] < found["samples"]["before"] and found["after"]["steps"] >= 40
    shown = probe(stretches[0], "compare", stretches[1], "--fail-if", "step_time < -5%").stdout
    assert re.match(r"Verdict +B is slower: its step takes ", shown) and re.search(rf"^A +{job.pid}@1", shown, re.M)
    assert "few-steps" in probe("compare", f"{job.pid}@1..9", stretches[1], status=8).stderr
    assert "A and B share steps" in probe("compare", job.pid, job.pid, status=2).stderr
    assert "'step_tim'" in probe("compare", *stretches, "--fail-if", "step_tim > 5%", status=2).stderr
