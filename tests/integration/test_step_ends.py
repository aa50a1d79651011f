"""Jobs that step no optimizer, or not yet: what a step is, in every view."""

from __future__ import annotations

import json
from typing import Any

import pytest
from until import until

from target import Probe, Start, Target

pytest.importorskip("torch")

AGENT = "SELECT step, optimizer, (SELECT MAX(step) FROM python.step_trace) AS last FROM probe.agents"  # of one moment
COUNTS = "SELECT COUNT(*) AS n, COUNT(DISTINCT step) AS steps, MAX(step) AS last FROM python."


def row(job: Target, probe: Probe, sql: str) -> dict[str, Any]:
    (found,) = json.loads(probe(job.pid, "query", "--format", "json", sql).stdout)
    return dict(found)


def steps(job: Target, probe: Probe) -> int:
    """Once there are some, in all tables."""
    until(lambda: row(job, probe, f"{COUNTS}step_trace")["n"] > 20, 60)
    assert row(job, probe, f"{COUNTS}torch_trace")["steps"] > 10
    return int(row(job, probe, f"{COUNTS}step_trace")["last"])


def test_a_loop_without_torchs_optimizers_steps_with_its_backward_passes(start: Start, probe: Probe) -> None:
    job = start("byhand.py", "update")
    probe("attach", job.pid)
    before = int(probe(job.pid, "eval", "step").stdout)  # at a boundary, of which there is none at first
    steps(job, probe)
    agents = row(job, probe, AGENT)
    assert agents["optimizer"] == "backward" and agents["last"] <= agents["step"] < agents["last"] + 100
    counted = row(job, probe, "SELECT MAX(step) - MIN(step) + 1 = COUNT(*) AS n FROM python.step_trace")
    assert counted == {"n": True}
    probe(job.pid, "set", "sample=64")
    first = int(probe(job.pid, "eval", "step").stdout)
    ran = int(probe(job.pid, "eval", "step").stdout) - first
    assert first > before and 0 < ran < 200  # once an iteration
    phases = "SELECT AVG(backward_duration) > 0 AND AVG(optimizer_duration) = 0 AS n FROM python.step_trace"
    assert row(job, probe, phases) == {"n": True}
    assert json.loads(probe(job.pid, "hang", "--json").stdout)["code"] == "not-hung"
    assert probe(job.pid, "detach").stdout.startswith("detached")


def test_in_a_server_each_call_is_a_step_in_every_view(start: Start, probe: Probe) -> None:
    job = start("byhand.py", "serve")
    probe("attach", job.pid)
    steps(job, probe)
    agents = row(job, probe, AGENT)
    assert agents["optimizer"] is None and agents["last"] <= agents["step"] < agents["last"] + 1000


def test_collectives_of_ranks_that_only_call_their_model_are_recorded(start: Start, probe: Probe) -> None:
    job = start("byhand.py", "serve_together", ranks=2)
    probe("attach", job.pid)
    ours = f"{COUNTS}nccl_trace WHERE state = 'done' AND NOT from_flight_recorder"
    until(lambda: row(job, probe, ours)["n"] > 40, 30)
    told = "SELECT COUNT(*) AS n, BOOL_AND(collectives_tap = 'on') AS recorded FROM probe.agents"
    until(lambda: row(job, probe, told) == {"n": 2, "recorded": True}, 30)  # the second rank may be later
    both = f"{COUNTS}probe.collectives WHERE len(arrived) = 2".replace("python.", "")
    until(lambda: row(job, probe, both)["n"] > 10, 30)  # of whole steps, which begin 2 s after the attach
    left = probe(job.pid, "detach")
    assert left.stdout.count("detached") == 2 and "kernels" not in left.stdout + left.stderr


def test_of_a_job_attached_to_in_its_validation_nothing_is_a_step_until_it_trains(start: Start, probe: Probe) -> None:
    job = start("byhand.py", "validate")
    probe("attach", job.pid)
    seen = list[int]()
    until(lambda: seen.append(row(job, probe, f"{COUNTS}step_trace")["n"]) or "trains" in job.output, 60, every_s=0.5)
    assert seen[0] == 0 and seen[-2] == 0  # the last one may have been asked for after its end
    assert steps(job, probe) < 1000
    assert row(job, probe, "SELECT optimizer FROM probe.agents") == {"optimizer": "SGD"}
