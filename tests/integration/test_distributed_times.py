"""Under DDP and FSDP the rows say the same as without, and waiting for another rank is no module's time."""

from __future__ import annotations

import json

import pytest

from target import Start

pytestmark = pytest.mark.alone  # it looks at the clock

STEPS = 2
NAPS_MS = {
    ("0", "Nap", "forward"): 1, ("1.0", "Nap", "forward"): 2, ("2", "Nap", "forward"): 3,
    ("0", "Nap", "backward"): 2, ("1.0", "Nap", "backward"): 3, ("2", "Nap", "backward"): 4,
}  # fmt: skip
ROOTS = {"ddp": "DistributedDataParallel", "fsdp1": "FullyShardedDataParallel", "fsdp2": "Sequential"}


def test_names_and_times_are_the_models_and_waiting_belongs_to_no_module(start: Start) -> None:
    output = start("distributed_times.py", ranks=2).wait_for("ready", times=2)
    told = [json.loads(line.split("times ")[1]) for line in output.splitlines() if "times {" in line]
    exact = [each for each in told if each["exact"]]  # a rank that is ahead may be heard first
    measured = [each for each in told if not each["exact"]]
    assert sorted(each["kind"] for each in exact) == sorted([*ROOTS] * 2)
    for each in exact:
        found = {tuple(key): ms for *key, ms in each["rows"]}
        wrong = {key: ms for key, ms in found.items() if abs(ms - STEPS * NAPS_MS.get(key, 0)) > 0.01}
        assert not wrong and {*NAPS_MS} <= {*found}, each["kind"]
        assert (ROOTS[each["kind"]],) * 2 + ("backward",) in found
        assert {name for name, _, _ in found} == {"0", "1.0", "1.1", "1", "2", "Sequential", ROOTS[each["kind"]]}

    waiting = next(each for each in measured if not each["late"])
    late = next(each for each in measured if each["late"])
    found = {tuple(key): ms for *key, ms in waiting["rows"]}
    inside = sum(ms for (_, kind, stage), ms in found.items() if (kind, stage) == ("Nap", "backward"))
    assert inside < waiting["naps"] + late["late"] / 2
    assert found["DistributedDataParallel", "DistributedDataParallel", "backward"] > late["late"]
