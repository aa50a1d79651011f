"""The taps on torch: what they record, that they change nothing, and that nothing stays behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from tapped import Taps, tapped  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

from probe.agent.boundary.boundary import Ticket  # noqa: E402
from probe.agent.taps.modules.forward import Forward  # noqa: E402
from probe.agent.taps.modules.forward_hooks import ForwardHooks  # noqa: E402
from probe.agent.taps.optimizer import OptimizerStep  # noqa: E402
from probe.agent.taps.optimizer_hooks import OptimizerHooks  # noqa: E402
from probe.streams import (  # noqa: E402
    BEGIN,
    BEGIN_SAME_NODE,
    END,
    ENGINE,
    FAILED,
    FORWARD,
    KIND_MASK,
    MARKS,
    OPTIMIZER,
    SPANS,
    STEPS,
)
from probe.tables.python.step_trace import TABLE as STEP_TRACE  # noqa: E402


@pytest.fixture(params=["code", "hooks"])
def taps(request: pytest.FixtureRequest) -> Iterator[Taps]:
    """The taps for the torch that is known, and those for any other."""
    hooks = request.param == "hooks"
    with tapped(ForwardHooks if hooks else Forward, OptimizerHooks if hooks else OptimizerStep) as made:
        yield made


@pytest.fixture
def code_taps() -> Iterator[Taps]:
    with tapped() as made:
        yield made


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def test_each_module_call_is_a_row_that_encloses_its_children(taps: Taps) -> None:
    model = net()
    model(torch.ones(2, 4))
    rows = taps.rows(SPANS)
    assert [row["subject"] for row in rows] == [taps.serial(m) for m in (*model, model)]
    assert all(row["flags"] == FORWARD for row in rows)
    root = rows[-1]
    assert all(root["start_ns"] <= row["start_ns"] <= row["end_ns"] <= root["end_ns"] for row in rows)


def test_a_call_that_raises_is_a_failed_row_and_the_exception_goes_on(taps: Taps) -> None:
    model = net()
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 5))
    assert [row["flags"] for row in taps.rows(SPANS)] == [FORWARD | FAILED] * 2


def test_a_backward_pass_that_raises_is_a_failed_row_and_the_exception_goes_on(taps: Taps) -> None:
    def refuse(grad: Any) -> None:
        raise LookupError

    loss = net()(torch.ones(2, 4)).sum()
    loss.register_hook(refuse)
    with pytest.raises(LookupError):
        loss.backward()
    assert taps.rows(SPANS)[-1]["flags"] == ENGINE | FAILED
    assert [row["failed"] for row in taps.table() if row["stage"] == "backward"] == [True]


class Tiring(nn.Module):  # type: ignore[misc]
    """Can be called once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            raise LookupError
        return self.linear(x).exp()


def test_checkpointing_that_stops_early_fails_nothing_and_one_that_fails_fails_its_pass(taps: Taps) -> None:
    from torch.utils.checkpoint import checkpoint

    checkpoint(net(), torch.ones(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
    assert [row["flags"] for row in taps.rows(SPANS)].count(FORWARD | FAILED) == 2  # the last layer and the model
    assert not any(row["failed"] for row in taps.table())
    with pytest.raises(LookupError):
        checkpoint(Tiring(), torch.ones(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
    failed = [(row["stage"], row["module_type"]) for row in taps.table() if row["failed"]]
    assert failed and {stage for stage, _ in failed} == {"backward"}


def test_a_users_traceback_shows_torchs_own_line(taps: Taps) -> None:
    with pytest.raises(RuntimeError) as caught:
        net()(torch.ones(2, 5))
    lines = [entry.line for entry in traceback.extract_tb(caught.tb) if entry.name == "_wrapped_call_impl"]
    assert lines and all(line and line.startswith("return self._call_impl(") for line in lines)


def test_backward_begins_at_the_output_and_ends_at_the_input(taps: Taps) -> None:
    model = net()
    model(torch.ones(2, 4, requires_grad=True) * 1).sum().backward()
    first, relu, last = model
    # the root's output node is its last child's, so it begins there too; each end is the next one's beginning
    assert taps.marks(first, relu, last, model) == [
        (2, BEGIN),
        (3, BEGIN_SAME_NODE),
        (1, BEGIN),
        (0, BEGIN),
        (3, END),
        (0, END),
    ]
    engine = [row for row in taps.rows(SPANS) if row["flags"] == ENGINE]
    marks = taps.rows(MARKS)
    assert len(engine) == 1
    assert engine[0]["start_ns"] <= marks[0]["time_ns"] <= marks[-1]["time_ns"] <= engine[0]["end_ns"]


def test_a_node_that_outlives_the_passes_does_not_gather_marks(taps: Taps) -> None:
    model = net()
    x = torch.ones(2, 4, requires_grad=True).view(2, 4)  # made once: its node is there in each pass
    ends = [0]
    for _ in range(12):
        model(x).sum().backward()
        ends.append(sum(row["flags"] == END for row in taps.rows(MARKS)))
    added = [after - before for before, after in pairwise(ends)]
    assert added[0] > 0 and {*added[1:]} == {added[1]} and added[1] <= 2 * added[0], added


def test_a_node_that_no_pass_comes_to_does_not_gather_marks_for_good(code_taps: Taps) -> None:
    """As features that a server has computed once, without no_grad."""
    model, ends = net(), []
    for calls in (2000, 4000):
        x = torch.ones(2, 4, requires_grad=True).view(2, 4)
        before = len(code_taps.rows(MARKS))
        for _ in range(calls):
            model(x)
        model(x).sum().backward()
        ends.append(len(code_taps.rows(MARKS)) - before)
    assert ends[1] <= ends[0]


def test_a_pass_beside_the_import_of_compiled_autograd_is_a_pass(taps: Taps, monkeypatch: pytest.MonkeyPatch) -> None:
    half = ModuleType("torch._dynamo.compiled_autograd")  # as another thread's import leaves it for a while
    monkeypatch.setitem(sys.modules, half.__name__, half)
    net()(torch.ones(2, 4)).sum().backward()
    assert [row["flags"] for row in taps.rows(SPANS)].count(ENGINE) == 1 and not taps.faults


def test_a_class_of_optimizers_can_be_copied_to_another_process(code_taps: Taps) -> None:
    """Ray, joblib and mlflow do it by value where the class is one of the script's."""

    class Mine(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    Mine([weight], lr=0.5).step()
    copied = cloudpickle.loads(cloudpickle.dumps(Mine))
    assert not {"_probe_clock", "_probe_stepped"} & copied.step.__globals__.keys()
    copied([weight], lr=0.25).step()
    assert weight.item() == 0.25 and not code_taps.faults


def test_a_module_that_returns_its_input_takes_no_time_from_others(taps: Taps) -> None:
    linear, identity = nn.Linear(4, 4), nn.Identity()
    identity(linear(torch.ones(2, 4))).sum().backward()
    assert taps.marks(linear, identity) == [(0, BEGIN), (0, END)]


def test_a_freed_output_is_not_taken_for_the_next_input(taps: Taps) -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    for _ in range(20):  # the allocator likes to hand out the same address again
        value = first(torch.ones(2, 4))
        value = value * 2
        second(value).sum().backward()
    ends = [mark for mark in taps.marks(first, second) if mark == (1, END)]
    assert len(ends) == 20


def test_an_in_place_operation_on_a_view_does_not_lose_the_mark_before_it(taps: Taps) -> None:
    linear, relu, flatten = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Flatten(0)
    flatten(relu(linear(torch.ones(2, 3, 4)))).sum().backward()  # three dimensions: the Linear's output is a view
    assert taps.marks(linear, relu, flatten) == [(2, BEGIN), (1, BEGIN), (0, BEGIN), (0, END)]


def test_a_traced_model_has_the_operations_that_it_has_without_taps() -> None:
    model, batch = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 3, 4)  # the Linear's output is a view

    def operations() -> list[str]:
        graph = torch.jit.trace(model, batch).inlined_graph  # its nodes do not keep it
        return [node.kind() for node in graph.nodes()]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        alone = operations()
        warnings.filterwarnings("error", category=torch.jit.TracerWarning)
        with tapped() as taps:
            assert operations() == alone
            assert not taps.faults


@pytest.mark.parametrize("shape", [tuple, list, dict])
def test_outputs_in_containers_are_marked(taps: Taps, shape: Callable[..., Any]) -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.linear(x)
            return {"a": y * 2, "b": None} if shape is dict else shape([y * 2, None])

    many = Many()
    output = many(torch.ones(2, 4))
    (output["a"] if shape is dict else output[0]).sum().backward()
    assert taps.marks(many, many.linear)[:2] == [(0, BEGIN), (1, BEGIN)]


def test_an_optimizer_step_is_a_row_and_a_boundary(taps: Taps) -> None:
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        sgd.step()
        sgd.zero_grad()
    steps = [row for row in taps.rows(SPANS) if row["flags"] & KIND_MASK == OPTIMIZER]
    assert len(steps) == 3 and {row["subject"] for row in steps} == {taps.serial(sgd)}
    assert [row["count"] for row in taps.rows(STEPS)] == [0, 1, 2]
    for boundary, step in zip(taps.rows(STEPS), steps, strict=True):
        assert step["start_ns"] < boundary["time_ns"] <= step["end_ns"]
    assert taps.boundaries == [1, 2, 3] and taps.steps.source == "attach"


inner_step: Any = None  # of the class below


def by_global(self: Any, closure: Any = None) -> Any:
    return inner_step(self, closure)


def by_closure(inner: Any) -> Any:
    helpers = by_default, net
    return lambda self, closure=None: (helpers, inner(self, closure))[1]


def by_default(inner: Any) -> Any:
    return lambda self, closure=None, inner=inner: inner(self, closure)


@pytest.mark.parametrize("wrapped", [by_closure, by_default, lambda inner: by_global])
def test_steps_of_a_class_whose_step_the_job_has_wrapped_are_rows(
    wrapped: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(torch.optim.SGD):  # type: ignore[misc]
        pass

    model = net()
    optimizer = Own(model.parameters(), lr=0.1)
    inner = Own.step
    code = inner.__code__
    monkeypatch.setattr(sys.modules[__name__], "inner_step", inner)
    Own.step = wrapped(inner)
    with tapped() as taps:
        optimizer.step()
        assert [row["flags"] for row in taps.rows(SPANS)] == [OPTIMIZER]
        hidden = {"step": inner}
        Own.step = lambda self: hidden["step"](self)  # nobody looks into the dict
    assert inner.__code__ is code


def test_a_step_within_a_step_of_the_same_optimizer_is_one(taps: Taps) -> None:
    class Own(torch.optim.SGD):  # type: ignore[misc]
        pass

    optimizer = Own(net().parameters(), lr=0.1)
    inner = Own.step
    Own.step = lambda self, closure=None: inner(self, closure)
    optimizer._patch_step_function()  # as torch does where an optimizer's state is loaded
    for _ in range(2):
        optimizer.step()
    assert taps.boundaries == [1, 2]


def test_an_optimizer_step_that_raises_is_no_row_and_no_boundary(taps: Taps) -> None:
    def closure() -> float:
        raise KeyError("mine")

    sgd = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    with pytest.raises(KeyError, match="mine"):
        sgd.step(closure)
    sgd.step()
    assert len(taps.rows(SPANS)) == 1 and taps.boundaries == [1]


def test_the_base_is_the_optimizers_own_count(taps: Taps) -> None:
    taps.remove()
    weight = nn.Parameter(torch.ones(3))
    adam = torch.optim.AdamW([weight])

    def step() -> None:
        weight.sum().backward()
        adam.step()

    for _ in range(7):
        step()
    taps.install()
    step()
    assert (taps.steps.base, taps.steps.source) == (7, "optimizer")


def test_where_passes_ended_the_first_steps_the_number_is_the_optimizers_as_soon_as_it_steps(taps: Taps) -> None:
    weight = nn.Parameter(torch.ones(3))
    adam = torch.optim.AdamW([weight])
    taps.remove()
    for _ in range(7):
        weight.sum().backward()
        adam.step()
    taps.install()
    taps.steps.by_pass = True
    for _ in range(3):
        weight.sum().backward()
    assert (taps.steps.count, taps.steps.source) == (3, "attach")
    adam.step()
    assert (taps.steps.next_step, taps.steps.source, taps.steps.by_pass) == (8, "optimizer", False)


def test_where_passes_ended_the_first_steps_no_number_of_theirs_is_given_again(taps: Taps) -> None:
    weight = nn.Parameter(torch.ones(3))
    adam = torch.optim.AdamW([weight])
    taps.steps.by_pass = True
    for _ in range(3):
        weight.sum().backward()
    adam.step()
    assert (taps.steps.next_step, taps.steps.source) == (4, "attach")


def test_an_anchor_that_stops_stepping_is_replaced(taps: Taps) -> None:
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    old, new = (torch.optim.SGD([weight], lr=0.1) for weight in weights)
    old.step()
    for _ in range(20):
        new.step()
    counts = [row["count"] for row in taps.rows(STEPS)]
    assert counts == list(range(6)) and {row["subject"] for row in taps.rows(STEPS)[1:]} == {taps.serial(new)}


def test_an_optimizer_made_for_each_step_ends_it(taps: Taps) -> None:
    weight = nn.Parameter(torch.ones(3))
    for _ in range(50):
        optimizer = torch.optim.SGD([weight], lr=0.1)
        optimizer.step()
    assert [row["count"] for row in taps.rows(STEPS)] == list(range(50))
    assert taps.rows(STEPS)[-1]["subject"] == taps.serial(optimizer)


@pytest.mark.parametrize("dies_at_once", [False, True])
def test_beside_one_made_for_each_step_another_that_stays_makes_no_more_steps(taps: Taps, dies_at_once: bool) -> None:
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    stays = torch.optim.SGD(weights[1:], lr=0.1)
    for _ in range(50):
        made = torch.optim.SGD(weights[:1], lr=0.1)
        made.step()
        if dies_at_once:
            del made
        stays.step()
    assert taps.steps.count == 50 + dies_at_once  # the first one is dead when the other steps, which then ends all


def one_optimizer_each(model: Any, in_hooks: bool) -> list[Any]:
    """An optimizer for each parameter; in_hooks: autograd steps it."""
    found = []
    for each in model.parameters():
        optimizer = torch.optim.AdamW([each])
        found.append(optimizer)
        if in_hooks:
            each.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    return found


@pytest.mark.parametrize("in_hooks", [False, True])
@pytest.mark.parametrize("one_more", [False, True])
def test_however_many_optimizers_step_in_an_iteration_it_is_one_step(
    taps: Taps, in_hooks: bool, one_more: bool
) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
    optimizers = one_optimizer_each(model, in_hooks)
    last = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)  # Hugging Face's loop steps one that does nothing
    for _ in range(10):
        model(torch.ones(1, 2)).sum().backward()
        for each in [] if in_hooks else optimizers:
            each.step()
        if one_more:
            last.step()
    assert [row["count"] for row in taps.rows(STEPS)] == list(range(10))
    assert (taps.steps.base, taps.steps.source) == (0, "optimizer")
    assert taps.backward.ends_steps == in_hooks  # so that passes are timed in every step


def test_optimizers_in_hooks_may_give_way_to_one_outside(taps: Taps) -> None:
    model = nn.Linear(2, 2)
    optimizers = one_optimizer_each(model, in_hooks=True)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    for _ in range(20):
        optimizers[0].step()
    assert taps.steps.count == 3 + 5 and not taps.backward.ends_steps


def test_a_step_in_a_pass_that_began_before_the_taps_came_ends_nothing(taps: Taps) -> None:
    taps.remove()
    weight = nn.Parameter(torch.ones(3))
    adam = torch.optim.AdamW([weight])

    def hook(_: Any) -> None:
        taps.install()
        adam.step()

    handle = weight.register_post_accumulate_grad_hook(hook)
    weight.sum().backward()
    assert taps.steps.count == 0
    handle.remove()
    weight.sum().backward()
    adam.step()
    assert (taps.steps.count, taps.steps.next_step) == (1, 2)


def test_users_global_hooks_survive_ours(taps: Taps) -> None:
    called = []
    handle = register_optimizer_step_post_hook(lambda *_: called.append(1))
    taps.optimizer.remove()
    taps.optimizer.install()
    torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1).step()
    handle.remove()
    assert called == [1]


def test_names_are_those_of_named_modules(taps: Taps) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x: Any) -> Any:
            return self.inner[1](self.inner[0](x))

    model = nn.Sequential(Block(), nn.ReLU())
    model(torch.ones(2, 4))
    told = dict[int, dict[str, Any]]()
    taps.log.put = lambda kind, id, fields: told.update({id: fields})  # type: ignore[method-assign]
    taps.modules.name()
    names = {serial: fields["name"] for serial, fields in told.items()}
    expected = {
        taps.serial(m): name or "Sequential" for name, m in model.named_modules() if id(m) in taps.modules.serials
    }
    assert names == expected
    assert told[taps.serial(model[0].inner[1])]["parent"] == taps.serial(model[0])


def test_a_serial_number_never_means_two_modules(taps: Taps) -> None:
    seen = set[int]()
    for _ in range(1000):
        module = nn.Linear(1, 1)
        module(torch.ones(1))
        seen.add(taps.serial(module))
    del module
    gc.collect()
    assert len(seen) == 1000 and not taps.modules.serials and not taps.backward.carriers


def train(steps: int = 20, each: Callable[[int], None] = lambda step: None) -> bytes:
    model = net()
    adam = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        each(step)
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        model(x).pow(2).mean().backward()
        adam.step()
        adam.zero_grad()
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def test_weights_are_bit_identical_with_without_and_while_toggling(taps: Taps) -> None:
    with_taps = train()
    toggled = train(each=lambda step: taps.remove() if step % 3 else taps.install())
    taps.remove()
    assert train() == with_taps == toggled


def test_nothing_stays_in_torch_but_inert_globals(taps: Taps) -> None:
    taps.remove()
    before = snapshot_of_torch()
    taps.install()
    assert snapshot_of_torch() != before
    train(3)
    taps.remove()
    assert snapshot_of_torch() == before


def snapshot_of_torch() -> tuple[Any, ...]:
    import torch.nn.modules.module as module_py
    import torch.optim.optimizer as optimizer_py

    return (
        module_py.Module._wrapped_call_impl.__code__,
        tuple(module_py._global_forward_pre_hooks.values()),
        tuple(module_py._global_forward_hooks.values()),
        torch.optim.AdamW.step.__code__,
        optimizer_py.Optimizer.profile_hook_step.__code__,
        torch.autograd._engine_run_backward,
        torch.autograd.graph._engine_run_backward,
        torch.autograd.profiler.record_function.__enter__,
        torch.autograd.profiler.record_function.__exit__,
        torch.autograd.profiler._enable_profiler,
        tuple(optimizer_py._global_optimizer_pre_hooks.values()),
        tuple(optimizer_py._global_optimizer_post_hooks.values()),
        sorted(name for name in vars(module_py) if name.startswith("_probe_")),
    )


def test_a_graph_that_outlives_the_taps_runs_backward_all_the_same(taps: Taps) -> None:
    model = net()
    loss = model(torch.ones(2, 4)).sum()
    taps.remove()
    for stream in taps.streams.values():
        stream.close()
    loss.backward()
    assert model[0].weight.grad is not None
    taps.streams.clear()


def test_a_tap_that_fails_is_reported_and_the_forward_goes_on(taps: Taps) -> None:
    taps.streams[SPANS].buffer.close()
    assert net()(torch.ones(2, 4)).shape == (2, 2)
    assert taps.faults and all(text.startswith("forward: ") for text in taps.faults)
    taps.faults.clear()
    del taps.streams[SPANS]


def test_a_call_as_deep_as_the_stack_allows_does_not_fail_for_us(code_taps: Taps) -> None:
    """The first call of a module makes its marks, for which we need more frames than it does."""
    x = torch.ones(2, 4, requires_grad=True).view(2, 4)

    def call(depth: int, module: Any) -> None:
        call(depth - 1, module) if depth else module(x)

    def fails(depth: int) -> bool:
        try:
            call(depth, nn.Linear(4, 2))
        except RecursionError:
            return True
        return False

    code_taps.remove()
    deepest = next(depth for depth in range(sys.getrecursionlimit()) if fails(depth)) - 1
    code_taps.install()
    assert [less for less in range(12) if fails(deepest - less)] == []
    code_taps.faults.clear()


class Named(nn.Module):  # type: ignore[misc]
    """Takes what it is given however it is given, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (value,) = [each for each in (*args, *kwargs.values()) if each is not None]
        while isinstance(value, (dict, list, tuple)):
            value = next(iter(value.values())) if isinstance(value, dict) else value[0]
        return self.linear(value.float())


def samples_of(taps: Taps, *batches: Callable[[nn.Module], Any]) -> list[int]:
    """What a job's steps note whose batches are these calls; the first step makes the training thread known."""
    model = Named()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for call in (lambda model: model(torch.ones(1, 4)), *batches):
        call(model).sum().backward()
        sgd.step()
    return [row["samples"] for row in taps.rows(STEPS)][1:]


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model(torch.ones(7, 4)),
        lambda model: model(torch.ones(7, 4, dtype=torch.long)),
        lambda model: model(x=torch.ones(7, 4)),
        lambda model: model([{"ids": torch.ones(7, 4)}]),
        lambda model: model(None, batch=(torch.ones(7, 4), torch.ones(3))),
        lambda model: nn.Sequential(nn.Identity(), model)(torch.ones(7, 4)),
    ],
    ids=["tensor", "integers", "by name", "in containers", "after None", "of the outermost"],
)
def test_samples_are_the_first_dimension_of_the_models_input(code_taps: Taps, call: Callable[[nn.Module], Any]) -> None:
    assert samples_of(code_taps, call, call) == [7, 7]


def test_an_evaluation_before_the_step_is_not_counted(code_taps: Taps) -> None:
    def evaluating(model: nn.Module) -> Any:
        with torch.no_grad():
            model(torch.ones(100, 4))
        return model(torch.ones(7, 4)) + 0 * model(torch.ones(1, 4))

    assert samples_of(code_taps, evaluating) == [7]


def test_samples_of_micro_steps_add_up(code_taps: Taps) -> None:
    def accumulated(model: nn.Module) -> Any:
        for size in (3, 4):
            model(torch.ones(size, 4)).sum().backward()
        return model(torch.ones(5, 4))

    assert samples_of(code_taps, accumulated) == [12]


def test_a_call_after_the_pass_is_not_counted(code_taps: Taps) -> None:
    model, metric = Named(), nn.Identity()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        out = model(torch.ones(8, 4))
        out.sum().backward()
        metric(out)
        sgd.step()
    assert [row["samples"] for row in code_taps.rows(STEPS)][1:] == [8, 8]


def test_of_a_pass_through_calls_before_another_pass_the_samples_are_not_known(code_taps: Taps) -> None:
    def pipelined(model: nn.Module) -> Any:
        losses = [model(torch.ones(2, 4)).sum() for _ in range(4)]
        for loss in losses[1:]:
            loss.backward()
        return losses[0]

    def two_losses(model: nn.Module) -> Any:
        out = model(torch.ones(7, 4))
        out.sum().backward(retain_graph=True)
        return out

    assert samples_of(code_taps, pipelined, two_losses) == [0, 7]


def test_of_what_the_column_says_has_none_the_samples_are_not_known(code_taps: Taps) -> None:
    actor, critic = Named(), Named()
    sgd = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.1)
    for _ in range(2):
        losses = [model(torch.ones(7, 4)).sum() for model in (actor, critic)]
        for loss in losses:
            loss.backward()
        sgd.step()
    weights = [*actor.parameters()]
    for weight, grad in zip(weights, torch.autograd.grad(actor(torch.ones(7, 4)).sum(), weights), strict=True):
        weight.grad = grad
    sgd.step()
    assert [row["samples"] for row in code_taps.rows(STEPS)][1:] == [0, 0]
    (column,) = [each for each in STEP_TRACE.columns if each.name == "samples"]
    assert "where two models are called before the passes" in column.null and "torch.autograd.grad()" in column.null


def test_recomputed_forwards_and_gradients_inside_a_forward_begin_no_micro_step(code_taps: Taps) -> None:
    from torch.utils.checkpoint import checkpoint

    class Force(nn.Module):  # type: ignore[misc]
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            energy = self.model(x)
            (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
            return force.sum() + self.model(x[:2]).sum()

    def again(reentrant: bool) -> Callable[[nn.Module], Any]:
        return lambda model: checkpoint(model, torch.ones(6, 4, requires_grad=True), use_reentrant=reentrant)

    found = samples_of(
        code_taps, again(True), again(False), lambda model: Force(model)(torch.ones(7, 4, requires_grad=True))
    )
    assert found[1:] == [6, 7]
    assert found[0] in (0, 6)  # a reentrant checkpoint calls the model without gradients


def test_samples_are_unknown_where_no_size_tells_them(code_taps: Taps) -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 4), torch.ones(2, 4)])
    found = samples_of(
        code_taps,
        lambda model: model(packed),
        lambda model: model.linear.weight.sum(),
        lambda model: model(torch.ones(4)),
    )
    assert found == [0, 0, 4]


def test_calls_on_another_thread_are_not_counted(code_taps: Taps) -> None:
    def beside(model: nn.Module) -> Any:
        thread = threading.Thread(target=lambda: model(torch.ones(100, 4)))
        thread.start()
        thread.join()
        return model(torch.ones(7, 4))

    assert samples_of(code_taps, beside) == [7]


def test_hooks_are_chosen_where_torchs_code_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.agent.taps.modules.forward.is_known", lambda code: False)
    monkeypatch.setattr("probe.agent.taps.optimizer.wrapper_of", lambda code: None)
    with tapped(Forward.make, OptimizerStep.make) as taps:
        assert taps.forward.state == "on: hooks, this torch's _wrapped_call_impl is not known"
        assert taps.optimizer.state == "on: hooks, this torch's Optimizer.profile_hook_step is not known"


def test_code_is_swapped_where_it_is_known() -> None:
    with tapped(Forward.make, OptimizerStep.make) as taps:
        assert taps.forward.state == taps.optimizer.state == "on"


def test_a_ticket_runs_at_the_next_module_call_also_where_nothing_was_recorded_yet(
    code_taps: Taps, monkeypatch: pytest.MonkeyPatch
) -> None:
    code_taps.remove()
    module_py = sys.modules["torch.nn.modules.module"]
    for name in [name for name in vars(module_py) if name.startswith("_probe_")]:
        monkeypatch.delattr(module_py, name)  # as before the first call of any tap
    forward, original, ran = code_taps.forward, nn.Module._wrapped_call_impl.__code__, list[str]()
    assert isinstance(forward, Forward)
    ticket = Ticket(lambda frame: ran.append("ran"), -1, lambda: None)
    forward.at_next_call(ticket)
    for _ in range(2):
        net()(torch.ones(2, 4))
    assert (ran, ticket.outcome) == (["ran"], "run")
    assert nn.Module._wrapped_call_impl.__code__ is original


def test_a_ticket_that_fails_fails_no_call(code_taps: Taps, monkeypatch: pytest.MonkeyPatch) -> None:
    code_taps.remove()
    module_py = sys.modules["torch.nn.modules.module"]
    for name in [name for name in vars(module_py) if name.startswith("_probe_")]:
        monkeypatch.delattr(module_py, name)
    forward, original = code_taps.forward, nn.Module._wrapped_call_impl.__code__
    assert isinstance(forward, Forward)
    ticket = Ticket(lambda frame: frame.no_such_name, -1, lambda: None)  # type: ignore[attr-defined]
    forward.at_next_call(ticket)
    for _ in range(2):
        assert net()(torch.ones(2, 4)).shape == (2, 2)
    assert len(code_taps.faults) == 1 and "no_such_name" in code_taps.faults.pop()
    assert nn.Module._wrapped_call_impl.__code__ is original


PROFILED = """
import json, sys
import torch
from tapped import tapped

net, x = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.ones(2, 4)
file = sys.argv[1]

def calls() -> int:
    with torch.profiler.profile(with_stack=True) as profile:
        net(x)
    profile.export_chrome_trace(file)
    return open(file).read().count('"nn.Module: ')

with tapped() as taps:
    calls()  # torch remembers from its first one what a module's call is
    taps.remove()
    enable = torch.autograd.profiler._enable_profiler
print(calls(), enable.__module__)
"""


def test_a_profiler_of_the_job_knows_calls_of_modules_after_the_taps(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROFILED, str(tmp_path / "trace.json")]
    path = os.pathsep.join(sys.path)
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout == "2 torch._C._autograd\n", done.stderr


IN_SAMPLED_STEPS = """
import json, sys
import torch
from probe.streams import SAMPLED, SPANS
from tapped import tapped

net, x = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.ones(2, 4)
file = sys.argv[1]

def calls(profile) -> int:
    profile.export_chrome_trace(file)
    return open(file).read().count('"nn.Module: ')

with tapped() as taps:
    net(x)
    plain = torch.nn.Module._wrapped_call_impl.__code__
    with torch.profiler.profile(with_stack=True) as begun_in_one:
        net(x)
    taps.forward.switch(0)
    with torch.profiler.profile(with_stack=True) as begun_before:
        taps.forward.switch(SAMPLED)
        net(x)
    taps.forward.switch(SAMPLED)
    is_plain = torch.nn.Module._wrapped_call_impl.__code__ is plain
    rows = [(row["subject"], row["flags"]) for row in taps.rows(SPANS)]
    print(calls(begun_in_one), calls(begun_before), is_plain, len(rows), rows[:2] == rows[2:4] == rows[4:])
"""


def test_a_profiler_of_the_job_knows_calls_of_modules_in_sampled_steps(tmp_path: Path) -> None:
    words = [sys.executable, "-c", IN_SAMPLED_STEPS, str(tmp_path / "trace.json")]
    path = os.pathsep.join(sys.path)
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout == "2 2 True 6 True\n", done.stdout + done.stderr
