"""What rows call modules: through wrappers, after changes, with modules that come and go; and where they are."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from tapped import Taps, tapped  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402
from zoo import Does  # noqa: E402

from probe.agent.names.modules import Modules  # noqa: E402
from probe.agent.storage.log import Log  # noqa: E402


@pytest.fixture
def taps() -> Iterator[Taps]:
    with tapped() as made:
        yield made


def called(taps: Taps, stage: str = "forward") -> list[tuple[str, str]]:
    """(module, class) of each row, in order of completion."""
    return [(row["module"], row["module_type"]) for row in taps.table() if row["stage"] == stage]


def net() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def test_names_leave_out_wrappers(taps: Taps) -> None:
    class ForwardModule(nn.Module):  # as Lightning wraps
        def __init__(self, module: Any) -> None:
            super().__init__()
            self._forward_module = module

        def forward(self, x: Any) -> Any:
            return self._forward_module(x)

    wrapped = ForwardModule(checkpoint_wrapper(nn.DataParallel(net())))
    wrapped(torch.ones(2, 4))
    assert called(taps) == [
        ("0", "Linear"),
        ("1", "ReLU"),
        ("2", "Linear"),
        ("Sequential", "Sequential"),
        ("DataParallel", "DataParallel"),
        ("CheckpointWrapper", "CheckpointWrapper"),
        ("ForwardModule", "ForwardModule"),
    ]


@pytest.mark.slow
def test_a_compiled_region_is_one_row_that_goes_by_the_name_of_what_was_compiled(taps: Taps) -> None:
    inner = torch.compile(net(), backend="eager")
    outer = nn.Sequential(nn.Linear(4, 4), torch.compile(net(), backend="eager"))
    inner(torch.ones(2, 4)).sum().backward()
    outer(torch.ones(2, 4)).sum().backward()
    rows = [(row["module"], row["module_type"], row["compiled"]) for row in taps.table() if row["stage"] == "forward"]
    assert rows == [
        ("Sequential", "Sequential", True),
        ("0", "Linear", False),
        ("1", "Sequential", True),
        ("Sequential", "Sequential", False),
    ]


def test_dynamo_sees_nothing_of_ours(taps: Taps) -> None:
    def compile_and_run() -> dict[str, Any]:
        torch._dynamo.reset()
        counters.clear()
        styles = [torch.compile(net(), backend="eager") for _ in range(2)]
        styles[1].compile(backend="eager")
        inside = net()
        function = torch.compile(lambda x: inside(x).sum(), backend="eager")
        for _ in range(3):
            (sum(model(torch.ones(2, 4)).sum() for model in styles) + function(torch.ones(2, 4))).backward()
        return {name: dict(counters[name]) for name in ("frames", "graph_break", "stats")}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched = compile_and_run()
        taps.remove()
        assert compile_and_run() == watched and watched["graph_break"] == {}


def test_modules_made_after_the_first_rows_are_named_too(taps: Taps) -> None:
    model = net()
    model(torch.ones(2, 4))
    assert called(taps)[-1] == ("Sequential", "Sequential")
    model.append(nn.Tanh())
    outer = nn.Sequential(model)
    outer(torch.ones(2, 4))
    assert called(taps)[4:] == [
        ("0.0", "Linear"),
        ("0.1", "ReLU"),
        ("0.2", "Linear"),
        ("0.3", "Tanh"),
        ("0", "Sequential"),
        ("Sequential", "Sequential"),
    ]


def test_a_shared_module_goes_by_its_first_name_in_named_modules(taps: Taps) -> None:
    shared = nn.Linear(4, 4)
    model = Does(lambda self, x: self.a(self.b(x)), a=nn.Sequential(shared), b=nn.Sequential(shared))
    model(torch.ones(2, 4))
    names = {id(module): name for name, module in model.named_modules()}
    assert called(taps)[0] == (names[id(shared)], "Linear") == ("a.0", "Linear")


def test_two_models_are_never_merged(taps: Taps) -> None:
    made, judge = (Does(lambda self, x: self.main(x), main=nn.Sequential(nn.Linear(4, 4))) for _ in range(2))
    judge(made(torch.ones(2, 4))).sum().backward()
    rows = taps.table()
    for name, parent in (("main.0", "main"), ("main", "Does"), ("Does", None)):
        for stage in ("forward", "backward"):
            found = [row for row in rows if (row["module"], row["stage"]) == (name, stage)]
            # the pass is a row of one of the two roots: of the one that autograd came to first
            assert len(found) == 2 and {row["parent"] for row in found} == {parent}
    roots = {module["root"] for module in taps.raw().log.modules.values()}
    assert roots == {taps.serial(made), taps.serial(judge)}


def test_modules_that_come_and_go_leave_no_wrong_name(taps: Taps) -> None:
    kinds, expected = (nn.Tanh, nn.ReLU, nn.Sigmoid, net), []
    for number in range(1000):
        module = kinds[number * 7 % 4]()
        module(torch.ones(2, 4))
        expected += [type(each).__name__ for each in [*module.children(), module]]
        if number % 97 == 0:
            taps.raw()  # as the agent does every second: dead and living modules are named
    del module
    gc.collect()
    found = called(taps)
    assert [kind for _, kind in found] == expected
    assert {name for name, _ in found} <= {"Tanh", "ReLU", "Sigmoid", "Sequential", "Linear", "0", "1", "2"}
    assert all(name == kind for name, kind in found if not name.isdigit())


def test_unchanged_records_are_not_logged_again(taps: Taps) -> None:
    model = net()
    model(torch.ones(2, 4))
    taps.raw()
    committed = taps.log.committed
    nn.Tanh()(torch.ones(1))
    taps.raw()
    assert taps.log.committed - committed < 500  # two records of Tanh


def test_a_module_that_is_made_in_each_step_does_not_have_all_modules_named_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, names, log = [0.0], dict[int, str](), Log()
    monkeypatch.setattr(log, "put", lambda record, serial, fields: names.update({serial: fields["name"]}))
    modules, model = Modules(log, lambda: now[0], credit_s=0.0), nn.Sequential(*[nn.Tanh() for _ in range(200)])
    serials = [modules.meet(each) for each in (*model, model)]
    modules.name()  # all are new
    assert names[serials[7]] == "7"
    model.append(nn.Tanh())
    new = modules.meet(model[-1])
    modules.name()
    assert names[new] == "Tanh"
    now[0] += 1000.0
    modules.name()
    assert names[new] == "200"
    more = [nn.Tanh() for _ in range(100)]
    model.extend(more)
    many = [modules.meet(each) for each in more]
    modules.name()
    assert names[many[0]] == "201"


def test_a_module_has_the_device_of_its_parameters(taps: Taps) -> None:
    model, nowhere = net(), nn.Sequential(nn.Tanh())
    split = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    split.register_parameter("elsewhere", nn.Parameter(torch.empty(1, device="meta")))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    nowhere(torch.ones(1))
    split(torch.ones(2, 4))
    sgd.step()
    found = [(row["module_type"], row["stage"], row["device"]) for row in taps.table()]
    assert set(found) == {
        *((kind, stage, "cpu") for kind in ("Linear", "ReLU", "Sequential") for stage in ("forward", "backward")),
        ("SGD", "step", "cpu"),
        ("Tanh", "forward", None),
        ("Sequential", "forward", None),
    }
