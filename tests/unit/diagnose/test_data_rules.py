"""Rules on batches, on planted rows."""

from __future__ import annotations

from planted import MS, Planted

from probe.diagnose.rules.data.input_bound import INPUT_BOUND


def loads(planted: Planted, *, workers: int, wait_ms: float, ready: int | None = None, count: int = 200) -> Planted:
    rows = [
        {"step": step, "loader": "train_loader", "wait_duration": wait_ms * MS, "num_workers": workers, "ready": ready,
         "batch_size": 16, "pin_memory": False, "failed": False}
        for step in range(1, count + 1)
    ]  # fmt: skip
    planted.plant("python.dataloader_trace", rows)
    return planted


def test_a_slow_loader_without_workers_is_found_with_its_function_and_remedy() -> None:
    stack = ("main (train.py:9)", "__next__ (torch/utils/data/dataloader.py:7)", "build_graph (train.py:41)")
    planted = loads(Planted().steps(data=60, forward=8, backward=10, other=2), workers=0, wait_ms=60)
    planted.profile(("data", 9.0, stack), ("data", 1.0, stack[:2]), ("forward", 9.0, stack[:1]))
    (found,) = INPUT_BOUND.find(planted.watched())
    assert found.sentence == "Input-bound: 75 % of each step waits for train_loader."
    assert found.where == "90 % of the loader's time is in build_graph (train.py:41)"
    assert found.now == "train_loader: num_workers=0, batch_size=16, pin_memory=False"
    assert found.remedy.startswith('probe 4242 eval "train_loader.num_workers, ')
    assert found.seconds is not None and abs(found.seconds - 0.06) < 0.002
    assert found.confidence is not None and found.confidence > 0.99


def test_a_loader_that_takes_little_is_left_alone() -> None:
    planted = loads(Planted().steps(data=1, forward=40, backward=40), workers=0, wait_ms=1).profile()
    assert not list(INPUT_BOUND.find(planted.watched()))
