"""A job with a slow rank; how often the right one is named: tests/bench/late_ranks.py."""

from __future__ import annotations

import json

import pytest
from until import until

from target import Probe, Start, Target

pytestmark = pytest.mark.alone  # it looks at the clock

pytest.importorskip("torch")

STEPS = 30


def told(job: Target, probe: Probe) -> list[dict[str, object]]:
    """What is said of so many steps."""

    def now() -> list[dict[str, object]] | None:
        asked = probe(job.pid, "stragglers", "--steps", STEPS, "--format", "json", status=None)
        assert asked.returncode in (0, 8), asked.stderr
        found = list(json.loads(asked.stdout or "[]"))
        return found if found and found[0]["steps"] == STEPS else None

    return until(now, 60, every_s=0.5)


def test_the_slow_rank_and_its_slow_module_are_reported(start: Start, probe: Probe) -> None:
    job = start("straggling.py", "--late", "1", "--by", "0.3", "--in", "loader", "--step", "0.05", ranks=2)
    probe("attach", job.pid)
    first, second = told(job, probe)
    assert (first["rank"], first["is_late"], second["is_late"]) == (1, True, False)
    assert 15 < first["late_pct"] < 35 and first["last_pct"] > 80
    assert "waiting for data" in first["spends"] and "for loader" in first["spends"]
    words = probe(job.pid, "stragglers", "--steps", STEPS).stdout
    assert words.startswith("Rank 1 is late by ") and "\n  " in words and "\nrank  late_ms  late_pct" in words
