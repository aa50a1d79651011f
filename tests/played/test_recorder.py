"""python.nccl_trace has the operations that torch's own Flight Recorder has."""

from __future__ import annotations

from pathlib import Path

import pytest
from played import Play
from recorders import both
from until import until

from target import Probe

LEAST = {"captures": 5}  # operations outside of captures
KINDS = ["ddp", "fsdp2", "tensor_parallel", "pipeline", "operations", "captures", "forks"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_each_operation_has_the_recorders_number_or_place_type_shape_and_state(
    play: Play, probe: Probe, tmp_path: Path, kind: str
) -> None:
    over = tmp_path / "over"
    job = play("training.py", kind, "40", "--until", str(over), ranks=2)
    probe("attach", job.target.pid)

    def differ() -> str:
        told, ours = both(job, probe)
        few = f"only {len(told)} are known" if len(told) < LEAST.get(kind, 100) else ""
        return few or "; ".join(f"{key}: {told[key]} {ours[key]}" for key in told if told[key] != ours[key])

    until(lambda: not differ(), 40, 0.5, why=differ)
    over.touch()
