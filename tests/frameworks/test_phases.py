"""What step_trace says of trainings by frameworks, against their own clocks, and what their loaders are called."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
from until import until
from watched import rows

from target import Probe, Start

TIMED = Path(__file__).parent / "timed.py"
PHASES = ("data", "forward", "backward", "validation", "optimizer")
STEPS = 100
LOADERS = {
    "transformers": {"train_dataloader", "eval_dataloader"},
    "accelerate": {"train", "validation"},
    "lightning": {"train_dataloader", "val_dataloader"},
    "lightning_manual": {"train_dataloader", "val_dataloader"},
}


def measurements(file: Path) -> dict[int, dict[str, float]]:
    """The job's own times: phases by step."""
    return {step: dict(zip(PHASES, times, strict=True)) for step, *times in map(json.loads, file.open())}


@pytest.mark.parametrize("style", LOADERS)
def test_phases_and_loaders_are_those_of_the_job(start: Start, probe: Probe, tmp_path: Path, style: str) -> None:
    pytest.importorskip(style.partition("_")[0])
    file = tmp_path / "times"
    job = start(TIMED, style, str(file))
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=1")
    until(lambda: rows(probe, job.pid, "SELECT COUNT(*) AS n FROM python.step_trace")[0]["n"] >= STEPS, 60)
    found = rows(probe, job.pid, "SELECT * FROM python.step_trace WHERE sampled AND duration IS NOT NULL")
    last = found[-1]["step"]
    own = until(lambda: times if last in (times := measurements(file)) else None)
    for phase in PHASES:
        steps = [row for row in found if own[row["step"]][phase] > 0]  # few are validated
        assert len(steps) > STEPS // 20
        seen = median(row[f"{phase}_duration"] for row in steps)
        assert seen == pytest.approx(median(own[row["step"]][phase] for row in steps), rel=0.05, abs=20e-6), phase
    assert all((row["validation_duration"] > 0) == (own[row["step"]]["validation"] > 0) for row in found)
    # those of the first second after the attach may have no name yet
    sql = f"SELECT DISTINCT loader FROM python.dataloader_trace WHERE step > {found[0]['step'] + STEPS // 2}"
    assert {row["loader"] for row in rows(probe, job.pid, sql)} == LOADERS[style]
