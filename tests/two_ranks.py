"""A job of two ranks over gloo, each a process of its own, run to its end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from target import Start

# Torch's remark on a store's client, where no name server answers.
NAMELESS = re.compile(r"\[W.*socket\.cpp.* The hostname of the client socket cannot be retrieved\. err=-3\n")


def run_ranks(start: Start, target: str, out: Path, timeout: float = 100) -> list[dict[str, Any]]:
    """What each rank of tests/targets/<target> has written about what it saw."""
    job = start(target, str(out), ready="", ranks=2)
    status = job.process.wait(timeout)
    said = NAMELESS.sub("", job.output)
    assert (status, said) == (0, ""), (status, said)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]
