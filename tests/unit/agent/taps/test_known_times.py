"""Rows of models whose times are known: whose time each moment of forward and backward is, and nothing is changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from naps import Clock, Naps, napping  # noqa: E402
from tapped import Taps, tapped  # noqa: E402
from zoo import ZOO  # noqa: E402

pytestmark = pytest.mark.slow

SLACK_NS = 10_000  # of a clock that goes on by 1 ns a reading
STAGES = ("forward", "backward")
Times = dict[tuple[str, str], int]


def expected(naps: Naps, taps: Taps) -> Times:
    """Naps by the name of their module and the stage."""
    names = {serial: module["name"] for serial, module in taps.raw().log.modules.items()}
    times: Times = defaultdict(int)
    for (module, stage), ns in naps.spent.items():
        times[names[taps.serial(module)], stage] += ns
    return times


def owned(rows: list[dict[str, Any]]) -> Times:
    times: Times = defaultdict(int)
    for row in rows:
        times[row["module"], row["stage"]] += round(row["duration"] * 1e9)
    return times


def differences(expected: Times, found: Times, slack: Callable[[int], float] = lambda ns: SLACK_NS) -> dict[Any, Any]:
    """What is not as it should be: module and stage -> (expected, found)."""
    both = {key: (expected.get(key, 0), found.get(key, 0)) for key in {*expected, *found}}
    return {key: (told, seen) for key, (told, seen) in both.items() if abs(told - seen) > slack(told)}


@pytest.mark.parametrize("name", ZOO)
def test_every_moment_is_the_time_of_the_module_that_took_it(name: str) -> None:
    with napping(Clock()) as naps, tapped() as taps:
        model, run = ZOO[name]()
        run()
        start = naps.clock.now
        run()
        assert not differences(expected(naps, taps), owned(taps.table()))
        assert naps.clock.now > start and model


def trained(name: str, steps: int, each: Callable[[int], None]) -> bytes:
    torch.manual_seed(0)
    model, run = ZOO[name]()
    sgd = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    for step in range(steps):
        each(step)
        run()
        sgd.step()
        sgd.zero_grad()
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


@pytest.mark.long
@pytest.mark.parametrize("name", ZOO)
def test_weights_are_the_same_with_without_and_while_toggling(name: str) -> None:
    with napping(Clock()), tapped() as taps:
        watched = trained(name, 30, lambda step: None)
        toggled = trained(name, 30, lambda step: taps.remove() if step % 3 else taps.install())
        taps.remove()
        assert trained(name, 30, lambda step: None) == watched == toggled


def test_hooks_of_the_user_run_in_the_same_order_with_the_same_results() -> None:
    def run() -> tuple[list[str], list[Any]]:
        torch.manual_seed(0)
        model, called = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3))), []
        for place, module in enumerate(model.modules()):
            for register in HOOKS:
                getattr(module, register)(lambda *_, told=f"{place} {register}": called.append(told))
        model[1].register_full_backward_hook(lambda module, gradients, _: tuple(2 * each for each in gradients))
        output = model(torch.ones(2, 3, requires_grad=True))
        output.grad_fn.register_prehook(lambda gradients: called.append("prehook of the node"))
        output.register_hook(lambda gradient: called.append("hook of the tensor"))
        output.sum().backward()
        return called, [parameter.grad.tolist() for parameter in model.parameters()]

    with tapped() as taps:
        watched = run()
        taps.remove()
        assert run() == watched and len(watched[0]) == 2 + len(HOOKS) * 4


HOOKS = (
    "register_forward_pre_hook",
    "register_forward_hook",
    "register_full_backward_pre_hook",
    "register_full_backward_hook",
)
