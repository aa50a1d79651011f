"""The rank whose device is slow is named, and what takes longer there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from played import Play
from until import until

from target import Probe


def test_a_rank_with_a_slow_device_is_late(play: Play, probe: Probe, tmp_path: Path) -> None:
    over = tmp_path / "over"
    words = ("ddp", "40", "--late", "1", "--until", str(over))
    job = play("training.py", *words, ranks=2, PLAYED_KERNEL_NS="100000")
    probe("attach", job.target.pid)
    probe(job.target.pid, "set", "sample=1")

    def told() -> list[dict[str, Any]]:
        asked = probe(job.target.pid, "stragglers", "--steps", "40", "--format", "json", status=None)
        found: list[dict[str, Any]] = json.loads(asked.stdout or "[]")
        return found if found and found[0]["steps"] == 40 else []

    late, other = until(told, 60, 1.0)
    over.touch()
    assert (late["rank"], late["is_late"], other["is_late"]) == (1, True, False), late
    assert "longer on its device" in late["spends"] and "of it in backward of " in late["spends"], late
