"""What a profile's rows add up to, function by function."""

from __future__ import annotations

from typing import Any

import pytest

from probe.profile.summary import hottest


def row(seconds: float, line: int, *inner: str) -> dict[str, Any]:
    """In train(), at a line of it, and in what it had called there."""
    stack = ["<module> (job.py:50)", f"train (job.py:{line})", *inner]
    return {"function": "train", "file": "/home/me/job.py", "line": line, "stack": stack, "seconds": seconds}


def test_a_function_says_where_most_of_its_time_went() -> None:
    rows = [row(1.0, 7), row(2.0, 9, "Linear.forward (torch/nn/modules/linear.py:134)"), row(0.5, 9)]
    rows.append({"function": "load", "file": "/home/me/data.py", "line": 3, "seconds": 1.5,
                 "stack": ["<module> (job.py:50)", "train (job.py:7)", "load (data.py:3)"]})  # fmt: skip
    rows.append({"function": None, "file": None, "line": None, "stack": None, "seconds": 9.0})
    train, load = hottest(rows)
    assert (train.function, train.where, train.self_s, train.self_pct, train.total_s) == ("train", "job.py", 3.5, 70, 5)
    assert train.mostly == "line 9, in Linear.forward: 57 %"
    assert (load.function, load.self_s, load.total_s, load.mostly) == ("load", 1.5, 1.5, "line 3: 100 %")


@pytest.mark.parametrize("library", ["transformers/trainer.py", "pretrainer.py"])
def test_the_time_of_a_function_is_not_that_of_one_of_its_name_in_another_file(library: str) -> None:
    names = [f"Trainer{number}.training_step" for number in range(20)]
    rows = [
        {"function": name, "file": "/home/me/trainer.py", "line": 7, "seconds": 1.0,
         "stack": ["<module> (job.py:50)", f"{name} (trainer.py:7)", f"{name} ({library}:134)"]}
        for name in names
    ]  # fmt: skip
    assert {(hot.function, hot.where) for hot in hottest(rows)} == {(name, "trainer.py") for name in names}
