"""A job with torch.compile that is attached to while it runs: the rows, and what dynamo counted."""

from __future__ import annotations

import re

import pytest
from until import until
from watched import rows

from target import Probe, Start, Target

REGIONS = "SELECT module, module_type, stage, depth, parent, compiled FROM python.torch_trace GROUP BY ALL ORDER BY ALL"


def counted(job: Target) -> list[str]:
    return re.findall(r"counted .*", job.wait_for("counted", timeout=150))


@pytest.mark.parametrize("style", ["wrapped", "builtin"])
def test_a_compiled_model_is_one_row_and_compiles_no_more(start: Start, probe: Probe, style: str) -> None:
    job = start("compiled.py", style, "--sleep", "0.1")
    for _ in range(2):
        probe("attach", job.pid)
        found = until(lambda: rows(probe, job.pid, REGIONS), 20, every_s=0.2)
        probe("detach", job.pid)
    name = {"wrapped": "Net", "builtin": "Sequential"}[style]
    both = [(name, name, stage, 0, None, True) for stage in ("forward", "backward")]
    assert [tuple(row.values()) for row in found if row["stage"] != "step"] == sorted(both, key=str)
    assert counted(job) == counted(start("compiled.py", style, ready=""))
