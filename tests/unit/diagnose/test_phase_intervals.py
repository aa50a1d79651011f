"""The interval of a phase holds the truth, also where only some blocks of steps are sampled and the phase is rare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planted import MS, Planted

from probe.agent.steps.sampling import is_chosen
from probe.diagnose.watched import BLOCK, Phase

JOBS = 60
FORWARD, OTHER = 30.0, 50.0  # ms


def seen(
    tables: Planted, seed: int, *, every: int, count: int, period: int, hold: int, work: float
) -> tuple[Phase, Phase]:
    """Validation and forward as told of so many steps, of which one block in `every` is sampled; `hold` steps of each
    `period` validate for `work` ms each."""
    chance = np.random.default_rng(seed)
    first, phase = int(chance.integers(1, 10**5)), int(chance.integers(period))
    rows = []
    for step in range(first, first + count):
        forward = FORWARD * (1 + 0.05 * chance.standard_normal())
        validation = work if (step + phase) % period < hold else 0.0
        sampled = is_chosen(step // BLOCK, every)
        rows.append(
            {"step": step, "sampled": sampled, "duration": (forward + OTHER + validation) * MS, "eval_duration": 0.0,
             "forward_duration": forward * MS if sampled else None,
             "validation_duration": validation * MS if sampled else None},
        )  # fmt: skip
    tables.database.execute("DELETE FROM python.step_trace")
    watched = tables.plant("python.step_trace", rows).watched()
    return watched.phase("validation"), watched.phase("forward")


def holds(phase: Phase, truth_ms: float) -> bool:
    return phase.low <= truth_ms * MS <= phase.high


@pytest.mark.parametrize(
    "job",
    [
        {"every": 2, "count": 320, "period": 17, "hold": 1, "work": 1000.0},
        {"every": 4, "count": 640, "period": 50, "hold": 10, "work": 1000.0},
        {"every": 4, "count": 1200, "period": 128, "hold": 10, "work": 3000.0},
    ],
)
def test_what_is_sure_enough_to_be_told_holds_the_truth(job: dict[str, Any]) -> None:
    tables, truth = Planted(), job["work"] * job["hold"] / job["period"]
    jobs = [seen(tables, seed, **job) for seed in range(JOBS)]
    told = [validation for validation, _ in jobs if validation.sure(0.1) >= 0.9]
    assert len(told) >= 0.9 * JOBS
    assert sum(holds(each, truth) for each in told) >= 0.9 * len(told)
    assert sum(holds(forward, FORWARD) for _, forward in jobs) >= 0.9 * JOBS
    assert all(phase.low >= 0 for phases in jobs for phase in phases)
