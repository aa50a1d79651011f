"""Replays of CUDA graphs have rows of their own, on a played device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from naps import MS  # noqa: E402
from played_cuda import Kernels, PlayedCuda, to_cuda  # noqa: E402
from tapped import Taps, tapped  # noqa: E402

GRAPH = torch.cuda.graphs.CUDAGraph
REPLAY = GRAPH.replay.__code__

MakeGraph = Callable[[float], Any]


@pytest.fixture
def graph(played: PlayedCuda, monkeypatch: pytest.MonkeyPatch) -> MakeGraph:
    """graph(7): one that takes 7 ms."""
    kernels = dict[int, float]()

    def replay(self: Any) -> None:
        played.launch(nn.Module(), "graph", int(kernels[id(self)] * MS))

    monkeypatch.setattr(GRAPH.__base__, "replay", replay, raising=False)

    def make(ms: float) -> Any:
        made = object.__new__(GRAPH)
        made._tracker = None
        kernels[id(made)] = ms
        return made

    return make


class Replaying(nn.Module):  # type: ignore[misc]
    """Replays a graph in its forward, and another one in its backward."""

    def __init__(self, inner: nn.Module, forward: Any, backward: Any) -> None:
        super().__init__()
        self.inner, self.graphs = inner, (forward, backward)

    def forward(self, x: Any) -> Any:
        return _Replayed.apply(self.inner(x), *self.graphs)


class _Replayed(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, forward: Any, backward: Any) -> Any:
        forward.replay()
        ctx.graph = backward
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.graph.replay()
        return gradient.clone(), None, None


def rows(played: PlayedCuda, taps: Taps) -> list[tuple[Any, ...]]:
    """(module, stage, parent, duration in ms) of each."""
    played.catch_up()
    taps.device.drain()
    return [
        (row["module"], row["stage"], row["parent"], row["duration"] and round(1e3 * row["duration"], 3))
        for row in taps.table()
    ]


def test_each_replay_has_a_row_with_its_time_on_the_device(played: PlayedCuda, taps: Taps, graph: MakeGraph) -> None:
    first, second = graph(7), graph(9)
    for each in (first, second, first):
        each.replay()
    assert rows(played, taps) == [
        ("graph 1", "graph", None, 7), ("graph 2", "graph", None, 9), ("graph 1", "graph", None, 7),
    ]  # fmt: skip
    assert {row["device"] for row in taps.table()} == {"cuda:0"}


def test_what_is_replayed_inside_a_module_is_not_its_own_time(played: PlayedCuda, taps: Taps, graph: MakeGraph) -> None:
    model = Replaying(to_cuda(Kernels(played, 1, 2)), graph(7), graph(9))
    model(torch.ones(1)).sum().backward()
    found = rows(played, taps)
    assert ("graph 1", "graph", "Replaying", 7) in found and ("graph 2", "graph", None, 9) in found
    assert {(module, stage): ms for module, stage, _, ms in found if stage != "graph"} == {
        ("inner", "forward"): 1, ("Replaying", "forward"): 0, ("inner", "backward"): 2, ("Replaying", "backward"): 0,
    }  # fmt: skip
    whole = [row for row in taps.table() if row["module"] == "Replaying"]
    assert {row["stage"]: round(1e3 * row["total_duration"], 3) for row in whole} == {"forward": 8, "backward": 11}


def test_where_several_devices_are_used_the_time_on_the_device_is_unknown(
    played: PlayedCuda, taps: Taps, graph: MakeGraph
) -> None:
    played.contexts = {0, 1}
    graph(7).replay()
    assert rows(played, taps) == [("graph 1", "graph", None, None)]


def test_without_the_tap_the_method_is_torchs_own(played: PlayedCuda, graph: MakeGraph) -> None:
    with tapped() as taps:
        held = graph(7).replay
        assert GRAPH.replay.__code__ is not REPLAY
    held()
    assert GRAPH.replay.__code__ is REPLAY and taps.faults == [] and played.busy_until


def test_a_job_without_cuda_keeps_the_method(played: PlayedCuda) -> None:
    played.initialized = False
    with tapped():
        assert GRAPH.replay.__code__ is REPLAY


def test_an_error_of_the_replay_is_the_jobs(played: PlayedCuda, taps: Taps, graph: MakeGraph) -> None:
    broken = object.__new__(GRAPH)
    broken._tracker = None
    with pytest.raises(KeyError):
        broken.replay()
    assert rows(played, taps) == []
