"""The samples that a step trained on: of which calls, and how often."""

from __future__ import annotations

from _thread import get_ident

import pytest

torch = pytest.importorskip("torch")

from probe.agent.steps.sample_count import SampleCount  # noqa: E402


def call(count: SampleCount, module: object, samples: int) -> None:
    """As the forward tap does before a call."""
    if count.waiting:
        count.count(module, (torch.zeros(samples, 2),), {})


def train(count: SampleCount) -> None:
    count.pass_begins()
    count.pass_ends()


@pytest.fixture
def count() -> SampleCount:
    made = SampleCount()
    made.take(get_ident())
    return made


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


def test_the_first_call_of_each_micro_step_counts(count: SampleCount, model: torch.nn.Module) -> None:
    for _ in range(3):
        call(count, model, 16)
        call(count, model, 5)
        train(count)
    assert count.take(get_ident()) == 48


def test_calls_that_train_nothing_do_not_count(count: SampleCount, model: torch.nn.Module) -> None:
    with torch.no_grad():
        call(count, model, 3)
    call(count, model.eval(), 7)  # a validation that forgot to turn gradients off
    call(count, model.train(), 16)
    train(count)
    assert count.take(get_ident()) == 16


def test_a_model_that_trains_in_eval_mode_counts(count: SampleCount, model: torch.nn.Module) -> None:
    for _ in range(2):
        call(count, model.eval(), 16)
        train(count)
    assert count.take(get_ident()) == 32


def test_a_long_list_is_not_gone_through(count: SampleCount, model: torch.nn.Module) -> None:
    seen = []

    class Tokens(list[object]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            for each in super().__iter__():
                seen.append(each)
                yield each

    tokens = Tokens([*range(1000), torch.zeros(3, 2)])
    count.count(model, (tokens,), {"also": [[tokens]] * 3})
    train(count)
    assert len(seen) < 300 and count.take(get_ident()) == 0
    count.count(model, (tokens, torch.zeros(5, 2)), {})  # what comes after it is seen
    train(count)
    assert count.take(get_ident()) == 5
