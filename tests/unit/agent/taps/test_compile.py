"""torch.compile beside the taps: it compiles nothing more than without them, and a compiled region is one row."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from tapped import Taps, tapped  # noqa: E402

from probe.agent.taps.dynamo import shielded_from_dynamo  # noqa: E402
from probe.agent.taps.modules.forward_hooks import ForwardHooks  # noqa: E402
from probe.streams import COMPILED, ENGINE, FORWARD, KIND_MASK, OPTIMIZER, SPANS  # noqa: E402

pytestmark = pytest.mark.slow

STEPS = 12
Toggle = Callable[[int], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.linear(self.norm(x))) + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def compiled(style: str, net: Any, optimizer: Any, options: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
    """(the loss of a batch, the optimizer's step) with this much of it compiled."""
    model, step = net, optimizer.step
    if style == "function":
        return torch.compile(lambda x: net(x).pow(2).mean(), **options), step
    if "wrapped" in style:
        model = torch.compile(net, **options)
    if style == "in place":
        net.compile(**options)
    if style == "blocks":
        for block in net.blocks:
            block.compile(**options)
    if "optimizer" in style:
        step = torch.compile(optimizer.step, backend=options["backend"])
    return lambda x: model(x).pow(2).mean(), step


def train(style: str, toggle: Toggle, **options: Any) -> tuple[dict[str, Any], bytes]:
    """What dynamo counted, and the weights after steps on batches of several sizes."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    loss, step = compiled(style, net, optimizer, {"backend": "eager", **options})
    for number in range(STEPS):
        toggle(number)
        batch = torch.randn(8 if number < 6 else 3 + number % 4, 8, generator=torch.Generator().manual_seed(number))
        loss(batch).backward()
        step()
        optimizer.zero_grad()
    counted = {name: dict(counters[name]) for name in ("frames", "stats", "graph_break", "recompiles")}
    return counted, b"".join(weight.detach().numpy().tobytes() for weight in net.parameters())


@cache
def alone(style: str) -> tuple[dict[str, Any], bytes]:
    return train(style, lambda number: None)


@pytest.fixture(autouse=True)
def compiled_quickly() -> None:
    """By this process, and without vector code, of whose headers the compiler takes long."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    torch._inductor.config.cpp.vec_isa_ok = False


@pytest.fixture
def taps() -> Iterator[Taps]:
    with tapped(stream_bytes=1 << 20) as made:
        made.remove()
        yield made


def toggles(taps: Taps) -> dict[str, Toggle]:
    chance = random.Random(1)

    def at_random(number: int) -> None:
        taps.install() if chance.random() < 0.5 else taps.remove()

    return {
        "before": lambda number: None if number else taps.install(),
        "after": lambda number: taps.install() if number == 4 else None,
        "at random": at_random,
    }


STYLES = ("wrapped", "in place", "blocks", "function", "optimizer")


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after", "at random"])
@pytest.mark.parametrize("style", STYLES)
def test_dynamo_compiles_as_often_as_without_taps(taps: Taps, style: str, when: str) -> None:
    assert train(style, toggles(taps)[when]) == alone(style)
    assert taps.rows(SPANS)


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{"fullgraph": True, "dynamic": True}, {"backend": "inductor"}], ids=["whole, dynamic", "inductor"]
)
def test_dynamo_compiles_as_often_with_other_options_too(taps: Taps, options: dict[str, Any]) -> None:
    without = train("wrapped", lambda number: None, **options)
    assert train("wrapped", toggles(taps)["at random"], **options) == without


def test_a_recompile_that_is_forbidden_does_not_happen(taps: Taps) -> None:
    net = Net()
    model, x = torch.compile(net, backend="eager"), torch.ones(2, 8)
    step = torch.compile(torch.optim.AdamW(net.parameters()).step, backend="eager")

    def iterate() -> None:
        model(x).sum().backward()
        step()

    for _ in range(3):
        iterate()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for number in range(8):
            taps.remove() if number % 2 else taps.install()
            iterate()


@pytest.mark.parametrize("installed", [True, False])
def test_a_module_with_a_hook_is_compiled_whole_and_once(taps: Taps, installed: bool) -> None:
    """Into such a module dynamo goes by its `__call__`, whose code is ours."""
    net, x = Net(), torch.ones(2, 8)
    net.head.register_forward_hook(lambda module, args, output: 2 * output)
    wanted = net(x)
    taps.install() if installed else taps.remove()
    torch._dynamo.reset()  # what was made of a Net without hooks
    model = torch.compile(net, backend="eager", fullgraph=True)
    model(x)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for number in range(4):
            taps.remove() if (number % 2 == 0) is installed else taps.install()
            assert torch.equal(model(x), wanted)


@pytest.mark.parametrize(("style", "regions"), [("wrapped", 1), ("in place", 1), ("blocks", 2), ("function", 0)])
def test_a_compiled_region_is_one_row(taps: Taps, style: str, regions: int) -> None:
    net = Net()
    loss, _ = compiled(style, net, torch.optim.SGD(net.parameters()), {"backend": "eager"})
    loss(torch.ones(2, 8)).backward()
    taps.install()
    loss(torch.ones(2, 8)).backward()
    flags = [row["flags"] for row in taps.rows(SPANS)]
    eager = {"blocks": 2, "wrapped": 2}.get(style, 0)  # net and head; the wrapper and net, which the reader makes one
    assert flags.count(FORWARD | COMPILED) == (0 if style == "wrapped" else regions)
    assert flags.count(FORWARD) == eager
    assert [flag & KIND_MASK for flag in flags].count(ENGINE) == 1


def test_a_compiled_optimizers_step_is_a_row(taps: Taps) -> None:
    taps.install()
    train("optimizer", lambda number: None)
    assert [row["flags"] for row in taps.rows(SPANS)].count(OPTIMIZER) == STEPS
    assert taps.boundaries == list(range(1, STEPS + 1))


def test_compiled_autograd_gets_graphs_without_our_marks(taps: Taps) -> None:
    from torch._dynamo.compiled_autograd import _enable
    from torch._dynamo.utils import counters

    def passes(toggle: Toggle) -> tuple[int, bytes]:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        net, x = Net(), torch.ones(2, 8)
        for number in range(6):
            toggle(number)
            with _enable(lambda graph: graph) if number else nullcontext():
                net(x).sum().backward()
        grads = b"".join(weight.grad.numpy().tobytes() for weight in net.parameters())
        return counters["compiled_autograd"]["captures"], grads

    without = passes(lambda number: None)
    for name in ("before", "after", "at random"):
        taps.remove()
        assert passes(toggles(taps)[name]) == without
    assert taps.backward.state == "off: the job uses compiled autograd" or not taps.forward.installed


def test_hooks_leave_a_compiled_region_as_it_is() -> None:
    with tapped(ForwardHooks, stream_bytes=1 << 20) as taps:
        taps.remove()
        graphs, weights = train("wrapped", lambda number: None, fullgraph=True)
        watched, same = train("wrapped", lambda number: None if number else taps.install(), fullgraph=True)
    assert (watched["stats"]["unique_graphs"], same) == (graphs["stats"]["unique_graphs"], weights)


def test_before_torch_2_6_dynamo_sees_nothing_that_our_hooks_call(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = torch._C._dynamo.eval_frame
    callback = ["the job's own"]

    def set_eval_frame(new: Any) -> Any:
        callback.append(new)
        return callback[-2]

    monkeypatch.delattr(frames, "_FrameAction")  # as before 2.6
    monkeypatch.setattr(frames, "set_eval_frame", set_eval_frame)
    during = shielded_from_dynamo(lambda: callback[-1])()
    monkeypatch.undo()
    assert (during, callback[-1]) == (None, "the job's own")


def test_what_a_step_in_flight_reaches_once_the_taps_are_gone_is_unseen(taps: Taps) -> None:
    """A detach may come in the midst of a step that dynamo watches."""
    from torch._dynamo.utils import counters

    class Optimizer(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> Any:
            leave()
            return super().step(closure)

    leave = torch._dynamo.disable(lambda: taps.remove() if watched else None)
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    step = torch.compile(Optimizer([weight], lr=0.1).step, backend="eager")
    watched = False
    for _ in range(3):
        step()
    before = dict(counters["frames"])
    watched = True
    taps.install()
    step()
    assert dict(counters["frames"]) == before
