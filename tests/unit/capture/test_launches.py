"""What ran on a device belongs to the operator that has launched it, as Kineto writes traces of CUDA."""

from __future__ import annotations

import json
from typing import Any

from probe.capture.trace import Trace

MAIN, OTHER = 11, 12  # threads


def event(cat: str, name: str, start_us: float, end_us: float, tid: int = MAIN, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start_us, "dur": end_us - start_us,
        "args": {"External id" if key == "external" else key: value for key, value in args.items()},
    }  # fmt: skip


def launched(*events: dict[str, Any]) -> dict[str, tuple[str, float]]:
    """By kernel: the operator that its row names, and the µs at which it was launched, 0: unknown."""
    trace = Trace.parse(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}).encode(), 0)
    names = dict(enumerate(trace.strings, 1))
    numbers = {text: number for number, text in names.items()}
    operators = {row[-1]: names[row[2]] for row in trace.operator_rows(numbers.__getitem__, 100)}
    rows = trace.kernel_rows(numbers.__getitem__, 1, 100)
    return {names[row[3]]: (operators.get(row[7], ""), row[2] / 1e3) for row in rows}


def test_a_kernel_belongs_to_the_operator_whose_number_it_has_and_to_the_call_of_its_correlation() -> None:
    assert launched(
        event("cpu_op", "aten::linear", 1, 9, external=1),
        event("cpu_op", "aten::addmm", 2, 8, external=2),
        event("cuda_runtime", "cudaLaunchKernel", 5, 6, external=2, correlation=7, cbid=211),
        event("kernel", "gemm", 50, 60, tid=20, external=2, correlation=7, device=0, stream=20),
        event("gpu_user_annotation", "nccl:all_reduce", 50, 60, tid=20, external=2),
    ) == {"gemm": ("aten::addmm", 5.0)}


def test_a_kernel_without_a_number_belongs_to_what_was_around_its_call() -> None:
    """torch gives numbers to operators alone: what a region that it has compiled launches has none, nor has a graph."""
    assert launched(
        event("cpu_op", "aten::add", 1, 3, external=1),
        event("user_annotation", "Torch-Compiled Region", 4, 20, external=2),
        event("cpu_op", "aten::empty", 5, 6, external=3),
        event("cpu_op", "aten::mul", 4, 30, tid=OTHER, external=4),
        event("cuda_driver", "cuLaunchKernel", 8, 9, correlation=7),
        event("cuda_runtime", "cudaGraphLaunch", 21, 22, correlation=8),
        event("kernel", "triton", 50, 60, tid=20, correlation=7, device=0, stream=7),
        event("kernel", "replayed", 60, 70, tid=20, correlation=8, device=0, stream=7),
        event("kernel", "launched before", 40, 41, tid=20, correlation=6, device=0, stream=7),
    ) == {"triton": ("Torch-Compiled Region", 8.0), "replayed": ("", 21.0), "launched before": ("", 0.0)}


def test_an_operator_without_a_number_has_launched_nothing() -> None:
    assert launched(
        event("cpu_op", "aten::add", 1, 3),
        event("kernel", "unknown", 50, 60, tid=20, device=0, stream=7),
    ) == {"unknown": ("", 0.0)}
