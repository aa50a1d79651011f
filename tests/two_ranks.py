"""A job of two ranks over gloo, each a process of its own, run to its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from target import Start


def run_ranks(start: Start, target: str, out: Path, timeout: float = 100) -> list[dict[str, Any]]:
    """What each rank of tests/targets/<target> has written about what it saw."""
    job = start(target, str(out), ready="", ranks=2)
    status = job.process.wait(timeout)
    assert (status, job.output) == (0, ""), (status, job.output)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]
