"""The acceptance job in two ranks ends with the very same weights whether or not it was looked at.

Every other kind of training is in tests/frameworks, for which `make frameworks` has the packages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from until import until

from probe.record import manifest
from target import Probe, Start, Target

QUERIES = (
    "SELECT module, stage, SUM(duration) FROM python.torch_trace GROUP BY ALL",
    "SELECT MAX(step) FROM python.torch_trace",
    "SELECT operation_type, COUNT(*) FROM python.nccl_trace GROUP BY ALL",
    "SELECT * FROM probe.agents",
    "SELECT step, COUNT(*) FROM python.torch_trace GROUP BY step ORDER BY step DESC LIMIT 5",
)
SETTINGS = ("sample=2", "sample=1 backward=off", "backward=on", "sample=128", "sample=auto budget=5%")


RANKS, STEPS = 2, "100"


def final_weights(target: Target) -> list[str]:
    output = target.wait_for("final", times=RANKS, timeout=180)
    return sorted(re.findall(r"final (\d+ \w+)", output))


@pytest.mark.timeout(400)
def test_weights_are_the_same_after_100_steps(start: Start, probe: Probe, tmp_path: Path) -> None:
    alone = start("acceptance.py", "--steps", STEPS, ranks=RANKS)
    hurry = tmp_path / "hurry"
    slowly = {"EXAMPLE_S": "0.2", "HURRY": str(hurry)}  # 0.8 s a step: time to ask, however fast the steps are
    watched = start("acceptance.py", "--steps", STEPS, ranks=RANKS, env=slowly)
    probe("attach", "--record", tmp_path / "runs", watched.pid)
    for sql, settings in zip(QUERIES, SETTINGS, strict=True):
        probe(watched.pid, "query", sql)
        probe(watched.pid, "set", *settings.split())
    assert "hidden_size=32" in probe(watched.pid, "eval", "print(model.config)").stdout
    (recording,) = (tmp_path / "runs").iterdir()
    until(lambda: manifest.asked(manifest.read(recording), "values"), 60)  # the recorder has asked, too
    probe(watched.pid, "detach")
    probe("attach", watched.pid)
    assert "final" not in watched.output, "the job ended before all was asked"
    hurry.touch()
    with_us = final_weights(watched)
    assert final_weights(alone) == with_us and len(with_us) == RANKS
