"""Loops of several styles in this process: a step is counted once for each of the job's own, whatever the taps do."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tapped import tapped  # noqa: E402
from watched import JOB  # noqa: E402

STYLES = ("one", "scheduler", "accumulation", "scaler", "two", "gan", "lbfgs")


@pytest.fixture(scope="module")
def loops() -> ModuleType:
    """tests/frameworks/loops.py, which stands on no path."""
    spec = importlib.util.spec_from_file_location("loops", JOB.parent / "loops.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.STEPS = 60
    return made


def weights(loops: Any, style: str, stepped: Callable[[int], object] = lambda step: None) -> bytes:
    torch.manual_seed(0)
    return b"".join(weight.detach().numpy().tobytes() for weight in loops.STYLES[style](stepped).parameters())


@pytest.mark.parametrize("style", STYLES)
def test_the_boundaries_are_the_jobs_steps_and_the_weights_stay(loops: Any, style: str) -> None:
    chance, seen = random.Random(0), []

    def toggle(step: int) -> None:
        seen.append((step, taps.steps.count))
        taps.forward.install() if chance.random() < 0.5 else taps.forward.remove()

    alone = weights(loops, style)
    with tapped(stream_bytes=1 << 20) as taps:
        assert weights(loops, style, toggle) == alone
    assert seen == [(step, step) for step in range(1, loops.STEPS + 1)]
