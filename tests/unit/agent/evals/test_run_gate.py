"""The word that the training waits for at a step."""

from __future__ import annotations

import threading
import time

import pytest

from probe.agent.evals import run_gate
from probe.agent.evals.run_gate import RunGate


@pytest.mark.parametrize("first", [True, False])
def test_the_first_word_counts(first: bool) -> None:
    gate = RunGate()
    gate.decide(first)
    gate.decide(not first)
    assert gate.wait() is first


def test_it_may_come_while_it_is_waited_for() -> None:
    gate = RunGate()
    threading.Timer(0.1, gate.decide, [True]).start()
    assert gate.wait() is True


def test_the_wait_ends_without_a_word_unless_there_will_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_gate, "CLIENT_TIMEOUT_SECONDS", 0.1)
    gate = RunGate()
    gate.extend()
    begun = time.monotonic()
    assert gate.wait() is False
    assert time.monotonic() - begun >= 0.2
