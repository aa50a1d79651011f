"""An agent that comes into jobs over NCCL breaks no rule of the runtime, and holds none of their memory."""

from __future__ import annotations

import os

import pytest
from played import Play, Played

from target import Probe

STEPS = os.environ.get("STEPS", "100")
KINDS = ["ddp", "fsdp2", "tensor_parallel", "pipeline", "operations", "captures", "mixed", "forks"]
# No kernel runs, so a loss is whatever lay in memory; that of these kinds depends on when operations of others end.
CHANCE = {"fsdp2", "operations"}
HELD = 1.02  # peaks differ by as much between two runs alone, with the moment when operations end


def looked_at(job: Played, probe: Probe) -> None:
    """What a user does meanwhile, twice."""
    for _ in range(2):
        assert "attached" in probe("attach", job.target.pid).stdout
        probe(job.target.pid, "query", "SELECT module, stage, SUM(host_duration) FROM python.torch_trace GROUP BY ALL")
        probe(job.target.pid, "query", "SELECT * FROM python.nccl_trace")
        probe(job.target.pid, "hang")
        probe(job.target.pid, "detach")
    probe("attach", job.target.pid)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_no_rule_is_broken_and_the_peak_and_the_losses_stay(play: Play, probe: Probe, kind: str, ranks: int) -> None:
    words = kind, STEPS, "--sleep", "0.2"
    alone, watched = play("training.py", *words, ranks=ranks), play("training.py", *words, ranks=ranks)
    looked_at(watched, probe)
    assert "final" not in watched.target.output, "the job ended before all was asked"
    for own, seen in zip(alone.final(ranks), watched.final(ranks), strict=True):
        assert seen.peak_bytes <= HELD * own.peak_bytes
        assert kind in CHANCE or seen.losses == own.losses
    assert [each for each in alone.broken() if each.rule != "context"] == []
    assert [each for each in watched.broken() if each.rule != "context" or each.is_ours] == []
