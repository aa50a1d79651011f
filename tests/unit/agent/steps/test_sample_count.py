"""The samples that a step trained on: of which calls, and how often."""

from __future__ import annotations

import signal
from _thread import get_ident
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from probe.agent.steps.sample_count import SampleCount  # noqa: E402


def call(count: SampleCount, module: object, samples: int) -> None:
    """As the forward tap does before a call."""
    if count.waiting:
        count.count(module, (torch.zeros(samples, 2),), {})


def train(count: SampleCount, retains_graph: bool = False) -> None:
    count.pass_begins(retains_graph)
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


def test_a_metric_after_the_pass_is_no_micro_step(count: SampleCount, model: torch.nn.Module) -> None:
    metric = torch.nn.Identity()
    for _ in range(2):
        call(count, model, 8)
        train(count)
        call(count, metric, 8)
    assert count.take(get_ident()) == 16
    call(count, metric, 8)
    assert count.take(get_ident()) == 0


def test_a_metric_before_the_batch_of_a_step_is_of_no_micro_step(count: SampleCount, model: torch.nn.Module) -> None:
    call(count, model, 500)  # with gradients, after the step before
    count.batch_taken()
    call(count, model, 8)
    count.batch_taken()  # the next one, or another loader's
    call(count, model, 20)
    train(count)
    assert count.take(get_ident()) == 8
    call(count, model, 8)
    count.batch_taken()  # the next one: no call follows
    train(count)
    assert count.take(get_ident()) == 8


def test_of_pipelined_micro_batches_the_samples_are_not_known(count: SampleCount, model: torch.nn.Module) -> None:
    for forwards in ("ffffbbbb", "fffbfbbb"):  # GPipe; 1F1B
        for each in forwards:
            if each == "f":
                call(count, model, 2)
            else:
                train(count)
        assert count.take(get_ident()) == 0
    call(count, model, 8)  # the next step is counted again
    train(count)
    assert count.take(get_ident()) == 8


def test_two_losses_of_one_graph_are_one_micro_step(count: SampleCount, model: torch.nn.Module) -> None:
    call(count, model, 8)
    train(count, retains_graph=True)
    train(count)
    assert count.take(get_ident()) == 8


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


def shapeless(error: Exception) -> Any:
    """A tensor that raises this in place of telling its shape."""

    class Shapeless(torch.Tensor):
        @property
        def shape(self) -> Any:  # type: ignore[override]
            raise error

    return torch.zeros(3, 2).as_subclass(Shapeless)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_of_a_tensor_without_a_shape_the_samples_are_not_known(count: SampleCount, model: torch.nn.Module) -> None:
    for tensor in (torch.nested.nested_tensor([torch.zeros(2, 2), torch.zeros(4, 2)]), shapeless(RuntimeError("none"))):
        count.count(model, (tensor,), {})
        train(count)
        assert count.take(get_ident()) == 0
    call(count, model, 16)  # the next step is counted again
    train(count)
    assert count.take(get_ident()) == 16


def test_what_a_signal_handler_raises_while_a_shape_is_read_reaches_the_job(
    count: SampleCount, model: torch.nn.Module
) -> None:
    def handler(number: int, frame: Any) -> None:
        raise InterruptedError("the scheduler's")

    class Interrupting(torch.Tensor):
        @property
        def shape(self) -> Any:  # type: ignore[override]
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(InterruptedError):
            count.count(model, (torch.zeros(3, 2).as_subclass(Interrupting),), {})
    finally:
        signal.signal(signal.SIGUSR1, before)
