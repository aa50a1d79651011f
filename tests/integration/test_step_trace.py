"""What step_trace says of a job against the job's own clock around each phase."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

import pytest
from until import until

from target import Probe, Start, Target

pytestmark = pytest.mark.alone  # it looks at the clock

PHASES = ("data", "forward", "backward", "validation", "optimizer")
STEPS = 30
TIMED = "forward_duration IS NOT NULL"  # not those before the setting, on a slow machine


def rows(job: Target, probe: Probe, sql: str) -> list[dict[str, Any]]:
    return list(json.loads(probe(job.pid, "query", "--format", "json", sql).stdout))


def watched(job: Target, probe: Probe, steps: int = STEPS) -> None:
    """The agent is in, and so many steps whole."""
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=1")
    until(lambda: rows(job, probe, f"SELECT COUNT(*) AS n FROM python.step_trace WHERE {TIMED}")[0]["n"] >= steps, 60)


def measurements(file: Path) -> dict[int, dict[str, float]]:
    """The job's own times: phases by step."""
    return {step: dict(zip(PHASES, times, strict=True)) for step, *times in map(json.loads, file.open())}


@pytest.mark.parametrize("style", ["", "--accumulate", "--gan", "--workers", "--closure", "--validate", "--by-hand"])
def test_phases_match_what_the_job_measures(start: Start, probe: Probe, tmp_path: Path, style: str) -> None:
    file = tmp_path / "times"
    job = start("phased.py", str(file), *([style, "1"] if style == "--workers" else [style][: len(style)]))
    watched(job, probe)
    found = rows(job, probe, f"SELECT * FROM python.step_trace WHERE {TIMED}")
    steps = {row["step"] for row in found}
    measured = until(lambda: times if max(steps) in (times := measurements(file)) else None)  # written after the end
    if style == "--by-hand":  # which keeps no count of its steps, so ours have other numbers
        steps = set(sorted(measured)[-len(found) :])
    for phase in PHASES:
        seen = median(row[f"{phase}_duration"] for row in found)
        # a GAN's step runs from its first optimizer to its first optimizer: the same work, in another order
        own = median(measured[step][phase] for step in steps)
        assert seen == pytest.approx(own, rel=0.05, abs=20e-6), phase
    assert all(
        sum(row[f"{phase}_duration"] for phase in (*PHASES, "comm", "eval", "other")) == pytest.approx(row["duration"])
        for row in found
    )
    if style != "--workers":  # which take the core away between two phases
        assert median(row["other_duration"] / row["duration"] for row in found) < 0.03
    assert {row["samples"] for row in found} == {16 * {"--accumulate": 3, "--gan": 2}.get(style, 1)}
    memory = [row["rss_mb"] for row in found if row["rss_mb"] is not None]
    assert memory and all(50 < one < 5000 for one in memory)


def test_the_step_of_an_http_server_is_the_call_that_it_times_itself(start: Start, probe: Probe) -> None:
    job = start("serving_http.py")
    port = job.output.split()[1]
    probe("attach", job.pid)
    counted = "SELECT COUNT(*) AS n FROM python.step_trace WHERE validation_duration > 0"

    took = list[float]()

    def asked() -> bool:
        for _ in range(STEPS):
            with urlopen(f"http://127.0.0.1:{port}") as answer:
                took.append(float(answer.read()))
        return rows(job, probe, counted)[0]["n"] >= STEPS

    until(asked, 60)
    found = rows(job, probe, "SELECT * FROM python.step_trace WHERE validation_duration IS NOT NULL")
    seen = median(row["validation_duration"] for row in found)
    assert seen == pytest.approx(median(took), rel=0.05)
    assert {row[f"{phase}_duration"] for row in found for phase in ("data", "forward", "backward", "optimizer")} == {0}


def test_an_eval_between_two_steps_counts_as_the_eval_phase(start: Start, probe: Probe, tmp_path: Path) -> None:
    job = start("phased.py", str(tmp_path / "times"))
    watched(job, probe, 5)
    probe(job.pid, "eval", "import time; time.sleep(0.3)")
    sql = (
        "SELECT s.step, s.eval_duration, s.other_duration, e.duration FROM python.step_trace s "
        "JOIN probe.evals e USING (step) WHERE s.eval_duration > 0"
    )
    found = until(lambda: rows(job, probe, sql))
    assert len(found) == 1
    assert found[0]["eval_duration"] == pytest.approx(found[0]["duration"], rel=0.05) and found[0]["duration"] > 0.3
    assert found[0]["other_duration"] < 0.05


def test_waits_for_batches_add_up_to_the_data_phase_of_the_steps(start: Start, probe: Probe, tmp_path: Path) -> None:
    job = start("phased.py", str(tmp_path / "times"), "--workers", "2")
    watched(job, probe)
    found = rows(
        job,
        probe,
        "SELECT step, any_value(data_duration) AS waited, SUM(wait_duration) AS waits, MIN(loader) AS loader, "
        "MAX(num_workers) AS workers, MAX(ready) AS ready, MAX(outstanding) AS outstanding "
        "FROM python.step_trace JOIN python.dataloader_trace USING (step) GROUP BY step",
    )
    assert len(found) >= STEPS
    assert all(row["waited"] == pytest.approx(row["waits"]) for row in found)
    assert {(row["loader"], row["workers"], row["outstanding"]) for row in found} == {("train_loader", 2, 4)}
    assert max(row["ready"] for row in found) >= 3  # the step takes longer than two workers do for a batch


BLOCKED = {"reducer": 60, "buffers": 60, "at once": 60, "later": 30, "functional": 60, "recv": 60, "coalesced": 60}


def test_time_waited_for_another_rank_is_communication(start: Start, probe: Probe) -> None:
    job = start("blocked.py", ranks=2)
    watched(job, probe, 2 * 8 * len(BLOCKED))
    found = rows(job, probe, f"SELECT * FROM python.step_trace WHERE comm_duration IS NOT NULL AND {TIMED}")
    assert all(
        sum(row[f"{phase}_duration"] for phase in (*PHASES, "comm", "eval", "other")) == pytest.approx(row["duration"])
        for row in found
    )
    waits = rows(
        job,
        probe,
        "SELECT rank, step, any_value(comm_duration) AS comm, SUM(t.duration) AS waits FROM python.step_trace s JOIN "
        "python.torch_trace t USING (rank, step) WHERE stage = 'comm' AND comm_duration IS NOT NULL GROUP BY ALL",
    )
    assert len(waits) > len(found) / 2
    assert all(row["waits"] == pytest.approx(row["comm"], abs=1e-4) for row in waits)
    early, late = ({row["step"]: row for row in found if row["rank"] == rank} for rank in (0, 1))
    for place, (kind, expected) in enumerate(BLOCKED.items()):
        steps = [step for step in early.keys() & late.keys() if step % len(BLOCKED) == place]
        more = median(early[step]["comm_duration"] - late[step]["comm_duration"] for step in steps)
        assert 1e3 * more == pytest.approx(expected, rel=0.1), kind
        # each step has a barrier too, for which both wait
        hidden = median(early[step]["comm_hidden_pct"] for step in steps)
        assert 20 < hidden < 55 if kind == "later" else hidden < 10, kind
