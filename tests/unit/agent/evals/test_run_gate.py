"""The decision that the training waits for at a step: to run the snippet or to go on without it."""

from __future__ import annotations

import threading
import time

import pytest

from probe.agent.evals import gates
from probe.agent.evals.gates import RunGate


@pytest.mark.parametrize("first", [True, False])
def test_the_first_decision_counts(first: bool) -> None:
    gate = RunGate()
    gate.decide(first)
    gate.decide(not first)
    assert gate.wait() is first


def test_a_decision_ends_a_wait_that_has_begun() -> None:
    gate = RunGate()
    threading.Timer(0.1, gate.decide, [True]).start()
    assert gate.wait() is True


def test_the_wait_ends_undecided_after_one_period_or_two_if_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "CLIENT_TIMEOUT_SECONDS", 0.1)
    gate = RunGate()
    gate.extend()
    begun = time.monotonic()
    assert gate.wait() is False
    assert time.monotonic() - begun >= 0.2
