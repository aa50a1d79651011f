"""The garbage collector is the job's: a look pauses it only where the training thread waits for the look."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

from probe.agent.memory import look
from probe.agent.memory.look import Look

pytest.importorskip("torch")


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Does something in the midst of a look."""

    def during(act: Callable[[], object]) -> None:
        monkeypatch.setattr(look, "allocated_bytes", lambda: act() and {})

    return during


def test_the_collector_is_paused_at_a_boundary_alone(during: Callable[[Callable[[], object]], None]) -> None:
    seen: list[bool] = []
    during(lambda: seen.append(gc.isenabled()))
    Look().piece(None)
    Look().piece(sys._getframe())
    assert seen == [True, False] and gc.isenabled()


def test_a_look_beside_the_job_does_not_turn_the_collector_on_that_the_job_turns_off(
    during: Callable[[Callable[[], object]], None],
) -> None:
    during(gc.disable)
    try:
        Look().piece(None)
        assert not gc.isenabled()
    finally:
        gc.enable()
