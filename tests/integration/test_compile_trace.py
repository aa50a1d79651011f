"""A job that compiles its model again and again, attached after the first time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from until import until

from probe.tables.python.compile_trace import TABLE
from target import FAST_IMPORT, Probe, Start

pytest.importorskip("torch")

JOB = f"""
{FAST_IMPORT}, itertools, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

@torch.compile(backend="eager", dynamic=False)
def scaled(x, factor):
    return (x * factor).sum()

for step in itertools.count(1):
    scaled(model(torch.ones(4, 8)), step // 80).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 85:
        print("ready", flush=True)
    time.sleep(0.02)
"""


def test_compilations_before_and_after_the_attach_are_rows(start: Start, probe: Probe, tmp_path: Path) -> None:
    script = tmp_path / "recompiling.py"
    script.write_text(JOB)
    job = start(script)
    probe("attach", job.pid)

    def rows() -> list[dict[str, object]]:
        sql = "SELECT * FROM python.compile_trace WHERE function = 'scaled' ORDER BY start_ns"
        return list(json.loads(probe(job.pid, "query", "--format", "json", sql).stdout))

    def seen() -> list[dict[str, object]]:
        return [each for each in rows() if each["step"] is not None]

    later = until(lambda: found if len(found := seen()) >= 2 else None)
    first, second, *_ = rows()
    assert (first["step"], first["recompile"], first["reason"]) == (None, False, None)
    assert (second["step"], second["recompile"]) == (None, True) and "factor" in str(second["reason"])
    assert all(each["recompile"] and "factor == " in str(each["reason"]) for each in later)
    steps = [int(str(each["step"])) for each in later]
    assert steps == sorted(steps) and len(set(steps)) == len(steps)
    assert all(0 < float(str(each["duration"])) < 60 and not each["failed"] for each in rows())
    assert "scaled" in probe(job.pid, "query", TABLE.example).stdout
    assert first["file"] == str(script) and first["line"] in (7, 8)
