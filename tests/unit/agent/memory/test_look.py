"""The garbage collector is the job's: a look pauses it only where the training thread waits for the look.  Classes of
tensors are the job's, too: none is asked."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from probe.agent.memory import look
from probe.agent.memory.look import Look

torch: Any = pytest.importorskip("torch")


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


def test_the_metaclass_of_a_tensors_class_is_not_asked() -> None:
    asked: list[str] = []

    class Meta(type(torch.Tensor)):  # type: ignore[misc]
        def __eq__(cls, other: object) -> bool:
            asked.append("eq")
            return cls is other

        def __hash__(cls) -> int:
            asked.append("hash")
            return id(cls)

    class Own(torch.Tensor, metaclass=Meta):  # type: ignore[misc]
        pass

    kept = [torch.zeros(2).as_subclass(Own)]
    asked.clear()
    look = Look()
    look.piece(sys._getframe())
    seen, places = list(asked), [text for _, text in look.told()["places"]]
    assert seen == [] and kept and f"{test_the_metaclass_of_a_tensors_class_is_not_asked.__name__}().kept" in places
