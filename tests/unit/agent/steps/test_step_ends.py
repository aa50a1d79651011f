"""What ends a step where no optimizer does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probe.agent.steps import step_ends
from probe.agent.steps.step_ends import CALL, StepEnds

S = 1_000_000_000


class Job:
    """What Steps knows of it, looked at once a second."""

    def __init__(self) -> None:
        self.steps: Any = SimpleNamespace(by_pass=False, last_ns=None, passes=0, anchor=0)
        self.calls, self.now = 0, 1
        self.ends = StepEnds(self.steps, lambda: self.calls)

    def work(self, seconds: int, calls: int = 0, passes: int = 0, optimizer: bool = False) -> str:
        """So many in each second; what is then said to end a step."""
        for _ in range(seconds):
            self.now += S
            self.calls += calls
            self.steps.passes += passes
            if passes and self.steps.by_pass:
                self.steps.last_ns, self.steps.anchor = self.now, -1
            if optimizer:
                self.steps.last_ns, self.steps.anchor = self.now, 7
                self.steps.by_pass = False
            self.ends.look(self.now)
        return "pass" if self.steps.by_pass else self.ends.by


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def has_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_ends, "optimizer_was_made", lambda: True)


@pytest.fixture
def has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_ends, "optimizer_was_made", lambda: False)


def test_in_a_server_it_is_the_call(job: Job, has_none: None) -> None:
    assert job.work(20) == ""  # nobody asks it anything
    assert job.work(2, calls=5) == ""
    assert job.work(2, calls=5) == CALL
    assert job.work(60) == CALL


def test_in_a_loop_without_an_optimizer_it_is_the_backward_pass(job: Job, has_none: None) -> None:
    assert job.work(1, calls=5, passes=2) == ""
    assert job.work(3, calls=5, passes=2) == "pass"


def test_a_validation_before_the_first_pass_does_not_make_calls_steps(job: Job, has_optimizer: None) -> None:
    assert job.work(30, calls=1000) == ""
    assert job.work(10, calls=5, passes=5) == ""  # it accumulates
    assert job.work(1, calls=5, passes=5, optimizer=True) == ""
    assert job.work(300, calls=1000) == ""  # a long validation


def test_an_optimizer_that_is_there_and_never_steps_is_not_waited_for_for_ever(job: Job, has_optimizer: None) -> None:
    assert job.work(70, calls=1000) == CALL
    assert job.work(30, calls=5, passes=1) == ""
    assert job.work(40, calls=5, passes=1) == "pass"


def test_passes_that_come_after_a_long_evaluation_are_not_taken_for_steps_at_once(
    job: Job, has_optimizer: None
) -> None:
    assert job.work(70, calls=1000) == CALL
    assert job.work(20, calls=5, passes=5) == ""
    assert job.work(20, calls=5, passes=5, optimizer=True) == ""


def test_a_loop_whose_optimizer_has_stepped_may_go_on_without_it(job: Job, has_optimizer: None) -> None:
    assert job.work(10, calls=5, passes=5, optimizer=True) == ""
    assert job.work(50, calls=5, passes=5) == ""
    assert job.work(20, calls=5, passes=5) == "pass"


def test_an_accumulation_that_is_known_to_be_long_is_waited_for(job: Job, has_optimizer: None) -> None:
    assert job.work(100, passes=1) == "pass"
    assert job.work(1, passes=1, optimizer=True) == ""
    for _ in range(3):
        assert job.work(100, passes=1) == ""
        assert job.work(1, passes=1, optimizer=True) == ""
    assert job.work(290, passes=1) == ""
    assert job.work(20, passes=1) == "pass"


def test_torch_tells_whether_an_optimizer_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class Own(torch.optim.Optimizer):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None:
            pass

    monkeypatch.setattr(torch.optim, "Optimizer", Own)
    assert not step_ends.optimizer_was_made()
    Own([torch.zeros(1, requires_grad=True)], {})
    assert step_ends.optimizer_was_made()
