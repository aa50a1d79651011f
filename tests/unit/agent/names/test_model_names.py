"""Which model a row is of: models of one class in one process are told apart by the variables that hold them.

PYTEST_DONT_REWRITE: a rewritten assert calls locals(), and up to 3.12 what that gives out is left alone.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from tapped import Taps, tapped  # noqa: E402

from probe.agent.evals.evaluation import Evaluation  # noqa: E402
from probe.agent.names import model_names as roots_py  # noqa: E402
from probe.agent.names.model_names import (  # noqa: E402
    LOOKS,
    ModelNames,
    root_of,
)
from probe.streams import SPANS  # noqa: E402


@pytest.fixture
def taps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Taps]:
    """A look takes as long as it takes, here: a core that is lost meanwhile is no reason not to find a name."""
    monkeypatch.setattr(roots_py, "LONGEST_S", 60.0)
    monkeypatch.setattr(roots_py, "PATIENCE_S", 60.0)
    with tapped() as made:
        yield made


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that are due a second later are due now."""
    monkeypatch.setattr(roots_py, "LOOK_AGAIN_S", 0.0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def found(taps: Taps, module: str = "layers.0") -> set[tuple[str, str | None]]:
    """(stage, root) of the rows of this module."""
    return {(row["stage"], row["root"]) for row in taps.table() if row["module"] == module}


def roots(taps: Taps) -> set[str | None]:
    return {row["root"] for row in taps.table() if row["stage"] == "forward"}


def test_teacher_and_student_of_one_class_are_kept_apart(taps: Taps) -> None:
    teacher, student = Net(), Net()
    adam = torch.optim.Adam(student.parameters())
    with torch.no_grad():
        aim = teacher(torch.ones(2, 4))
    (student(torch.ones(2, 4)) - aim).sum().backward()
    adam.step()
    assert found(taps) == {("forward", "teacher"), ("forward", "student"), ("backward", "student")}
    assert found(taps, "Adam") == {("step", None)}


def test_the_models_of_a_gan_go_by_the_attributes_that_hold_them(taps: Taps) -> None:
    class Gan:
        def __init__(self) -> None:
            self.generator, self.critic = Net(), Net()

        def train(self) -> set[tuple[str, str | None]]:
            self.critic(self.generator(torch.ones(2, 4))).sum().backward()
            return found(taps)

    assert Gan().train() >= {("forward", "self.generator"), ("forward", "self.critic")}
    gc.collect()
    gan = Gan()
    assert gan.train() >= {("forward", "gan.generator"), ("forward", "gan.critic"), ("backward", "gan.generator")}


def test_models_in_a_module_that_nobody_calls_bear_its_name(taps: Taps) -> None:
    class Lit(nn.Module):  # as a GAN in a LightningModule
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.critic = Net(), nn.Sequential(nn.Linear(4, 1), nn.ReLU())

    def train(model: Lit) -> None:
        model.critic(model.generator(torch.ones(2, 4))).sum().backward()
        found(taps)

    train(Lit())
    rows = {(row["module"], row["root"]) for row in taps.table() if row["stage"] == "forward"}
    assert rows >= {("critic", "model"), ("critic.0", "model"), ("critic.1", "model"), ("generator", "model")}


def test_models_that_two_modules_hold_under_one_name_are_told_apart(taps: Taps) -> None:
    class Lit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def train_step(self, inner: Any) -> None:
            self.net(torch.ones(2, 4))
            if inner is not None:
                inner.train_step(None)
            else:
                found(taps)

    class Other(Lit):
        pass

    Lit().train_step(Other())
    names = {(row["module"], row["root"]) for row in taps.table() if row["stage"] == "forward"}
    assert names >= {("net", "inner"), ("net", "Lit")}, names


def test_a_model_that_no_variable_holds_is_named_by_its_class(taps: Taps) -> None:
    def made() -> Any:
        return [[Net()], [Net()]]  # too deep to look

    deep = made()
    for (model,) in deep:
        model(torch.ones(2, 4))
        del model
    assert found(taps) == {("forward", "Net"), ("forward", "Net#2")}


def test_variables_of_a_snippet_name_no_model(taps: Taps) -> None:
    seen: set[tuple[str, str | None]] = set()
    deep = [[Net()]]  # too deep to look
    code = """
def use():
    snippets_own = deep[0][0]
    snippets_own(torch.ones(2, 4))
    seen.update(found(taps))
use()
"""
    sent: list[dict[str, Any]] = []
    evaluation = Evaluation(
        code=code, filename="<eval>", write=False, send=lambda kind, fields: sent.append(fields), log=taps.log,
        spans=taps.streams[SPANS], own={},
    )  # fmt: skip
    evaluation.run_at(sys._getframe(), 0)
    assert sent[-1]["ok"] and len(deep) == 1
    assert seen == {("forward", "Net")}


@pytest.mark.slow
def test_models_that_live_one_after_another_all_get_the_unnumbered_name(taps: Taps, at_once: None) -> None:
    for _ in range(3):
        model = Net()
        model(torch.ones(2, 4))
        assert roots(taps) == {"model"}
        del model
        gc.collect()


@pytest.mark.slow
def test_a_wrapped_model_has_the_name_of_what_is_wrapped(taps: Taps) -> None:
    class DistributedDataParallel(nn.Module):  # as torch's wraps
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            return self.module(x)

    model = Net()
    wrapped, unnamed = DistributedDataParallel(model), [[DistributedDataParallel(Net())]]
    compiled = torch.compile(student := Net(), backend="eager")
    for each in (wrapped, compiled, unnamed[0][0]):
        each(torch.ones(2, 4))
    del each
    rows = {(row["module"], row["root"]) for row in taps.table() if row["depth"] == 0}
    assert rows == {("DistributedDataParallel", "model"), ("Net", "student"), ("DistributedDataParallel", "Net")}
    assert student is not model


def test_a_model_alone_is_named_at_the_first_look(taps: Taps) -> None:
    model = Net()
    model(torch.ones(2, 4)).sum().backward()
    rows = taps.table()
    assert {row["root"] for row in rows} == {"model"} and {row["module"] for row in rows} >= {"layers.0", "Net"}


def test_a_loop_variable_gives_way_to_a_lasting_one(taps: Taps, at_once: None) -> None:
    models = [Net(), Net()]
    names = []
    for each in models * 2:
        each(torch.ones(2, 4))
        names.append(roots(taps))
    assert names == [{"each"}, {"models[0]", "each"}, {"models[0]", "models[1]"}, {"models[0]", "models[1]"}]


def test_parameters_of_functions_that_the_model_calls_are_no_names(taps: Taps) -> None:
    seen = []

    class Asks(Net):
        def forward(self, x: Any) -> Any:
            me = self
            me.layers(x)
            seen.append(roots(taps))
            return x

    outer = nn.Sequential(Asks())
    outer(torch.ones(2, 4))
    assert roots(taps) == {"outer"}
    assert seen == [{"Sequential"}]  # of the outer calls nothing is known yet


def test_another_threads_variables_are_read_and_nothing_is_kept(taps: Taps) -> None:
    go, done = threading.Event(), threading.Event()
    alive: list[weakref.ref[nn.Module]] = []

    def serve() -> None:
        teacher = Net()
        alive.extend(map(weakref.ref, teacher.modules()))
        teacher(torch.ones(2, 4))
        go.set()
        done.wait()

    thread = threading.Thread(target=serve)
    thread.start()
    assert go.wait(10)
    (serial,) = {row["root"] for row in taps.raw().log.modules.values()}
    assert taps.raw().log.modules[serial]["model"] == "teacher"
    done.set()
    thread.join()
    gc.collect()
    assert len(alive) == 4 and not any(each() for each in alive)


def test_a_traced_functions_variables_are_left_alone(taps: Taps) -> None:
    """Up to 3.12 a tracer's copy of them is written back, so it must not be emptied."""
    names, left = [], []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is traced.__code__:
            if event == "return":
                names.append(roots(taps))
            return tracer
        return None

    def traced() -> None:
        model = Net()
        model(torch.ones(2, 4))
        left.append(model.layers[0].weight.sum())

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        traced()
    finally:
        sys.settrace(before)
    assert len(left) == 1, left
    assert names == [{"Net"}] or sys.version_info >= (3, 13)


def test_the_search_for_a_name_ends_after_a_few_looks(at_once: None) -> None:
    roots = ModelNames()
    model = Net()
    nowhere = root_of(model)
    for _ in range(LOOKS):
        roots.name({1: nowhere})
    assert not roots.curious and roots.names == {1: "Net"}
    roots.name({})
    assert roots.names == {}
    roots.name({1: nowhere})
    assert roots.curious  # as if it had never been looked for


def test_to_find_names_keeps_no_module_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    models, gone = [Net()], list[bool]()
    reference = weakref.ref(models[0])

    def exclusively(*_: object) -> bool:
        models.clear()  # as the job does while the agent waits for its turn
        gone.append(reference() is None)
        return False

    monkeypatch.setattr(roots_py, "exclusively", exclusively)
    with tapped() as taps:
        models[0](torch.ones(2, 4))
        taps.modules.name()
    assert gone == [True]


def test_names_that_many_share_are_told_apart_quickly() -> None:
    roots, modules = ModelNames(), [nn.Tanh() for _ in range(2000)]
    roots.name({serial: root_of(module) for serial, module in enumerate(modules)})
    assert len(set(roots.names.values())) == 2000 and roots.names[1999] == "Tanh#2000"
