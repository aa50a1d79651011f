"""The acceptance job ends with the very same weights whether or not it was looked at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from target import Probe, Start, Target

JOB = Path(__file__).parent.parent / "acceptance" / "document" / "job.py"
QUERIES = (
    "SELECT module, stage, SUM(duration) FROM python.torch_trace GROUP BY ALL",
    "SELECT MAX(step) FROM python.torch_trace",
    "SELECT operation_type, COUNT(*) FROM python.nccl_trace GROUP BY ALL",
    "SELECT * FROM probe.agents",
    "SELECT step, COUNT(*) FROM python.torch_trace GROUP BY step ORDER BY step DESC LIMIT 5",
)
SETTINGS = ("sample=2", "sample=1 backward=off", "backward=on", "sample=100", "sample=auto budget=5%")


def final_weights(target: Target, ranks: int) -> list[str]:
    output = target.wait_for("final", times=max(1, ranks), timeout=180)
    return sorted(re.findall(r"final (\d+ \w+)", output))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [0, 2], ids=["one process", "two ranks"])
def test_weights_after_300_steps(start: Start, probe: Probe, ranks: int) -> None:
    alone = start(JOB, "--steps", "300", ranks=ranks)
    watched = start(JOB, "--steps", "300", ranks=ranks)
    probe("attach", watched.pid)
    for sql, settings in zip(QUERIES, SETTINGS, strict=True):
        probe(watched.pid, "query", sql)
        probe(watched.pid, "set", *settings.split())
    assert "hidden_size=128" in probe(watched.pid, "eval", "print(model.config)").stdout
    probe(watched.pid, "detach")
    probe("attach", watched.pid)
    with_us = final_weights(watched, ranks)
    assert final_weights(alone, ranks) == with_us and len(with_us) == max(1, ranks)
