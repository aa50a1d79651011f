"""Modes of torch and subclasses of tensors are code of the job: for the marks of modules alone taps call it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tapped import tapped  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

STEPS = 3
MANY = 300  # modules; a transformer of 48 layers has twice as many
MARKS = ("'grad_fn'", "'_base'", "'numel'", "'_backward_hooks'")  # what they read: to hide it would cost each call


def named(function: Any) -> str:
    """Without an address."""
    return str(getattr(function, "__self__", function)) if hasattr(function, "__self__") else str(function)


class Training:
    """What a mode for functions, one for operators and a subclass of tensors see of a short training."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        seen = self.seen.append

        class Functions(TorchFunctionMode):
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen(f"mode {named(function)}")
                return function(*args, **(kwargs or {}))

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen(f"operator {function}")
                return function(*args, **(kwargs or {}))

        class Mine(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen(f"subclass {named(function)}")
                return super().__torch_function__(function, types, args, kwargs or {})

        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        model[0].bias = torch.nn.Parameter(torch.zeros(4).as_subclass(Mine))
        self.optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.ones(8, 4).as_subclass(Mine)
        self._train(model, batch)  # so that the optimizer has a state
        self.seen.clear()
        self.run = lambda: self._run(model, batch, Functions(), Operators())

    def _run(self, model: Any, batch: Any, functions: Any, operators: Any) -> list[str]:
        with functions, operators:
            for _ in range(STEPS):
                self._train(model, batch)
        return self.seen

    def _train(self, model: Any, batch: Any) -> None:
        self.optimizer.zero_grad()
        model(batch).sum().backward()
        self.optimizer.step()


def test_they_see_the_calls_of_the_job() -> None:
    alone, training = Training().run(), Training()
    with tapped() as taps:
        seen = list(training.run())
        assert {row["device"] for row in taps.table()} == {"cpu"}
        assert training.seen == seen  # also for names and devices
    assert len(alone) > 20 * STEPS
    assert [each for each in seen if not any(name in each for name in MARKS)] == alone


def many() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(MANY)))


def batch() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def operators(graph: Any) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes]


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_trace_of_many_modules_has_the_operators_of_the_job_alone(pre_dispatch: bool) -> None:
    alone = operators(make_fx(many(), pre_dispatch=pre_dispatch)(batch()))
    with tapped():
        assert operators(make_fx(many(), pre_dispatch=pre_dispatch)(batch())) == alone


def test_a_mode_in_which_many_modules_were_called_is_freed() -> None:
    model = many()
    with tapped() as taps:
        with FakeTensorMode() as mode:
            model(batch()).sum().backward()
        ended = weakref.ref(mode)
        del mode
        gc.collect()
        assert ended() is None
        assert [row["stage"] for row in taps.table()].count("backward") == MANY + 1


def test_each_of_many_modules_has_its_backward_in_their_first_step_under_a_mode_that_raises() -> None:
    class Strict(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "empty" in str(function):
                raise NotImplementedError(function)
            return function(*args, **(kwargs or {}))

    model, x = many(), batch()
    with tapped() as taps:
        with Strict():
            model(x).sum().backward()
        assert [row["stage"] for row in taps.table()].count("backward") == MANY + 1
