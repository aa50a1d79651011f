"""Traces beside torch.compile: what it compiles, before, during and after a trace, is what it compiles without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from probe import protocol as wire  # noqa: E402
from probe.agent.serve.server import Refused  # noqa: E402
from probe.agent.storage.log import Log  # noqa: E402
from probe.agent.storage.rows import Stream  # noqa: E402
from probe.agent.trace import traces as traces_py  # noqa: E402
from probe.agent.trace.traces import Traces  # noqa: E402

pytestmark = pytest.mark.slow


class Server:
    """Of an agent, with one client."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.said: dict[str, Any] = {}

    def reply(self, key: Any, kind: str, **fields: Any) -> None:
        self.said = fields

    def trace(self, name: str) -> dict[str, Any]:
        request = {"function": f"{__name__}:{name}", "since": "", "seconds": 60}
        self.handlers[wire.TRACE]((None, b"1"), request, [])
        return self.looked()

    def looked(self) -> dict[str, Any]:
        ids = [trace["id"] for trace in self.said["traces"]]
        self.handlers[wire.TRACE]((None, b"1"), {"ids": ids, "to": None}, [])
        found: dict[str, Any] = self.said["traces"][0]
        return found


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(traces_py, "_RETENTION_BYTES", 1)
    import torch._dynamo

    torch._dynamo.reset()
    made, streams, log = Server(), dict[str, Stream](), Log()
    traces = Traces(made, streams, log)  # type: ignore[arg-type]
    yield made
    traces.close()
    assert not any(getattr(each, "__self__", None) is traces for each in callbacks())
    for part in (*streams.values(), log):
        part.close()
    torch._dynamo.reset()


def callbacks() -> list[Any]:
    found: list[Any] = torch._dynamo.callback.callback_handler.start_callbacks
    return found


def small(x: Any) -> Any:
    return x.sin() + 1


def beside(x: Any) -> Any:
    return x


class Net(torch.nn.Module):  # type: ignore[misc]
    def helper(self, x: Any) -> Any:
        return x + 1

    def forward(self, x: Any) -> Any:
        return self.helper(x) * 2


def caller(x: Any) -> Any:
    return small(x) * 2


on_its_own = torch.compile(small, backend="eager", fullgraph=True)


def frames() -> int:
    return sum(torch._dynamo.utils.counters["frames"].values())


def test_a_function_that_is_built_into_a_compiled_one_is_refused(server: Server) -> None:
    compiled = torch.compile(caller, backend="eager", fullgraph=True)
    compiled(torch.ones(3))
    before = frames()
    with pytest.raises(Refused, match="built it into a larger function"):
        server.trace("small")
    compiled(torch.ones(3))
    assert frames() == before


def test_other_functions_of_a_job_that_compiles_are_traced(server: Server) -> None:
    compiled = torch.compile(caller, backend="eager", fullgraph=True)
    compiled(torch.ones(3))
    before = frames()
    server.trace("beside")
    beside(compiled(torch.ones(3)))
    assert server.looked()["calls"] == 1 and frames() == before


@pytest.mark.parametrize("name", ["small", "Net.helper"])
def test_a_compilation_ends_the_traces_and_finds_the_functions_own_code(server: Server, name: str) -> None:
    net, compiled = torch.compile(Net(), backend="eager", fullgraph=True), torch.compile(caller, fullgraph=True,
                                                                                         backend="eager")  # fmt: skip
    compile_it = compiled if name == "small" else net
    server.trace(name)
    for shape in ((3,), (5, 3)):
        assert compile_it(torch.ones(shape)).shape == shape
    assert "torch.compile has begun" in server.looked()["why_off"]


def test_what_torch_compile_has_made_of_a_function_can_be_traced(server: Server) -> None:
    on_its_own(torch.ones(3))
    before = frames()
    server.trace("on_its_own")
    on_its_own(torch.ones(3))
    assert server.looked()["calls"] == 1 and frames() == before


def test_sizes_of_tensors_are_their_elements(server: Server) -> None:
    from probe.agent.trace.held import UNKNOWN, size_reader

    size = size_reader()
    assert [size(each) for each in (torch.ones(2, 3), torch.nn.Parameter(torch.ones(4)))] == [6, 4]
    asked = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(function)
            return function(*args, **(kwargs or {}))

    class Own(torch.Tensor):  # type: ignore[misc]
        def numel(self) -> int:
            raise AssertionError("the job's code ran")

    tensor, own = torch.ones(2), torch.ones(2).as_subclass(Own)
    with Mode():
        asked.clear()
        assert size(tensor) == UNKNOWN == size(own) and not asked
