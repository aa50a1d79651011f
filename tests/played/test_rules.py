"""An agent that comes into jobs over NCCL breaks no rule of the runtime, holds none of their memory, and sees each
operation end; with --no-devices it only must do no harm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from played import Play, Played
from until import until

from target import Probe

STEPS = os.environ.get("STEPS", "100")
RANKS = [int(count) for count in os.environ.get("RANKS", "1 2").split()]
PATIENCE_S = 120 + int(STEPS)
KINDS = [
    "ddp", "fsdp2", "tensor_parallel", "pipeline", "operations", "captures", "mixed", "forks", "capturable",
    "reduce_overhead",
]  # fmt: skip
# No kernel runs, so a loss is whatever lay in memory; that of these kinds depends on when operations of others end.
CHANCE = {"ddp", "fsdp2", "operations"}
HELD = 1.02  # peaks differ by as much between two runs alone, with the moment when operations end
LEFT_ALONE = {"captures", "forks", "operations"}  # also run with --no-devices, on two ranks
ENDS = """SELECT state, COUNT(*) AS n, MIN(duration_ms) AS least_ms, COUNT(*) - COUNT(duration_ms) AS untimed
FROM python.nccl_trace WHERE state <> 'in_flight' OR age_ms > 3000 GROUP BY state"""
SENDS_NOTHING = {"mixed", "capturable", "reduce_overhead"}
SENDS_NOTHING_ALONE = {"fsdp2", "tensor_parallel"} | SENDS_NOTHING
UNKNOWN = 0.01  # of the operations, at most: one that ends in the moment in which it is waited for has no known end
PLAYED_MS = 0.3  # an operation takes as long once its last rank has come


def looked_at(job: Played, probe: Probe, *options: str) -> None:
    """What a user does meanwhile, twice."""
    for _ in range(2):
        assert "attached" in probe("attach", *options, job.target.pid).stdout
        probe(job.target.pid, "query", "SELECT module, stage, SUM(host_duration) FROM python.torch_trace GROUP BY ALL")
        probe(job.target.pid, "query", "SELECT * FROM python.nccl_trace")
        probe(job.target.pid, "hang")
        probe(job.target.pid, "detach")
    probe("attach", *options, job.target.pid)


def ends(job: Played, probe: Probe) -> dict[str, dict[str, Any]]:
    """By state: its operations.  One that has been in flight for long is there, too."""
    found = json.loads(probe(job.target.pid, "query", "--format", "json", ENDS).stdout)
    return {each["state"]: each for each in found}


OFTEN = {kind for kind in KINDS if kind != "reduce_overhead"}  # which compiles for half a minute
CASES = [
    pytest.param(kind, ranks, (), marks=() if ranks == 2 and kind in OFTEN else pytest.mark.long)
    for kind in KINDS for ranks in RANKS
]  # fmt: skip
CASES += [pytest.param(kind, 2, ("--no-devices",), marks=pytest.mark.long) for kind in sorted(LEFT_ALONE)]


@pytest.mark.timeout(5 * PATIENCE_S)
@pytest.mark.parametrize(("kind", "ranks", "options"), CASES)
def test_no_rule_is_broken_and_the_peak_and_the_losses_stay(
    play: Play, probe: Probe, tmp_path: Path, kind: str, ranks: int, options: tuple[str, ...]
) -> None:
    words, over = (kind, STEPS, "--sleep", "0.05"), tmp_path / "over"
    alone = play("training.py", *words, ranks=ranks)
    watched = play("training.py", *words, "--until", str(over), ranks=ranks)
    looked_at(watched, probe, *options)
    if not options and kind not in (SENDS_NOTHING if ranks > 1 else SENDS_NOTHING_ALONE):
        until(lambda: ends(watched, probe).get("done", {"n": 0})["n"] >= 1 / UNKNOWN, 60)
        seen = ends(watched, probe)
        unknown = seen.pop("end_unknown", {"n": 0})["n"]
        assert seen.keys() <= {"done", "captured"} and ("captured" in seen) <= (kind == "captures"), seen
        assert unknown <= UNKNOWN * seen["done"]["n"], unknown
        assert seen["done"]["least_ms"] >= PLAYED_MS and seen["done"]["untimed"] == 0, seen
    watched.target.wait_for(f"made {STEPS}", times=ranks, timeout=PATIENCE_S)
    over.touch()
    for own, seen in zip(alone.final(ranks, PATIENCE_S), watched.final(ranks), strict=True):
        assert seen.peak_bytes <= HELD * own.peak_bytes
        assert kind in CHANCE or seen.losses == own.losses
    assert [each for each in alone.broken() if each.rule != "context"] == []
    assert [each for each in watched.broken() if each.rule != "context" or each.is_ours] == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["fsdp2", "tensor_parallel", "pipeline"])
def test_the_peak_is_that_of_the_job_alone_to_the_byte(play: Play, probe: Probe, tmp_path: Path, kind: str) -> None:
    """Where operations end at once, so that the peak does not depend on when they do."""
    words, over = (kind, "40", "--sleep", "0.02"), tmp_path / "over"
    at_once = {"PLAYED_KERNEL_NS": "0", "PLAYED_COMM_NS": "0"}
    alone = play("training.py", *words, ranks=2, **at_once)
    watched = play("training.py", *words, "--until", str(over), ranks=2, **at_once)
    probe("attach", watched.target.pid)
    until(lambda: ends(watched, probe).get("done", {"n": 0})["n"] > 100, 60)
    over.touch()
    assert [each.peak_bytes for each in watched.final(2)] == [each.peak_bytes for each in alone.final(2)]
