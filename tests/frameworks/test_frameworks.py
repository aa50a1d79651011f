"""Training frameworks that are attached to: their weights stay, and `step` is their own number."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("lightning")

from watched import alone, watched

from target import Probe, Start

OWN = (
    "transformers", "transformers_accumulation", "accelerate", "lightning", "lightning_manual",
    "one", "scheduler", "accumulation", "scaler", "two", "gan",
)  # fmt: skip
OTHERS = {"transformers_sgd": "trainer", "lightning_sgd": "trainer", "sgd_scheduler": "scheduler"}
COUNTED = ("lbfgs",)  # it keeps no count of its own


@pytest.mark.parametrize("style", OWN)
def test_the_step_is_the_frameworks_own_and_the_weights_stay(
    start: Start, probe: Probe, tmp_path: Path, style: str
) -> None:
    end, pairs, agents = watched(start, probe, tmp_path, style)
    assert [own - ours for own, ours in pairs] == [0] * 3
    assert agents[0]["step_source"] == "optimizer"
    assert end == alone(start, style)


@pytest.mark.parametrize("style", OTHERS)
def test_a_number_that_the_optimizer_does_not_keep_is_the_trainers_or_the_schedulers(
    start: Start, probe: Probe, tmp_path: Path, style: str
) -> None:
    end, pairs, agents = watched(start, probe, tmp_path, style)
    assert [own - ours for own, ours in pairs] == [0] * 3
    assert agents[0]["step_source"] == OTHERS[style]
    assert end == alone(start, style)


@pytest.mark.parametrize("style", COUNTED)
def test_an_optimizer_without_a_count_is_counted_from_the_attach(
    start: Start, probe: Probe, tmp_path: Path, style: str
) -> None:
    end, pairs, agents = watched(start, probe, tmp_path, style)
    (first, ours), (second, then) = pairs[:2]
    assert second - first == then - ours > 0
    assert agents[0]["step_source"] == "attach"
    assert end == alone(start, style)


@pytest.mark.parametrize("style", ["zero", "fsdp1", "fsdp2"])
def test_two_ranks_of_sharded_training(start: Start, probe: Probe, tmp_path: Path, style: str) -> None:
    end, pairs, _ = watched(start, probe, tmp_path, style, ranks=2)
    assert [own - ours for own, ours in pairs] == [0] * 3
    assert end == alone(start, style, ranks=2)
