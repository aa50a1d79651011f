"""What a trace tells of its operators: what they ran on, in which arithmetic, and what each of them costs once."""

from __future__ import annotations

import json
from typing import Any

from probe.capture.trace import Operator, Trace
from probe.streams import ON_DEVICE, OPERATORS, STREAMS

H100, CPU = "NVIDIA H100 80GB HBM3", "AMD EPYC, 8 threads"
CONVOLUTION = {
    "Input Dims": [[2, 4, 17], [8, 4, 3], [8], [], [], [], [], [], []],
    "Input type": ["float", "float", "float", *["ScalarList"] * 6],
    "Concrete Inputs": ["", "", "", "[2]", "[1]", "[1]", "False", "[0]", "1"],
}
PRODUCT = {"Input Dims": [[4, 5], [5, 7]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
VIEW = {"Input Dims": [[4, 5]], "Input type": ["float"], "Concrete Inputs": [""]}


def operator(name: str, start: int, end: int, **args: Any) -> dict[str, Any]:
    args["External id"] = 100 + start
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": end - start, "tid": 7, "args": args}


def kernel(name: str, launched: int, start: int = 50, end: int = 60) -> dict[str, Any]:
    args = {"External id": 100 + launched, "device": 0, "stream": 7}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": end - start, "tid": 7, "args": args}


def parsed(*events: dict[str, Any]) -> Trace:
    told = {"deviceProperties": [{"id": 0, "name": H100}], "baseTimeNanoseconds": 0, "traceEvents": events}
    return Trace.parse(json.dumps(told).encode(), 0, CPU)


def of(trace: Trace, name: str) -> Operator:
    (found,) = (each for each in trace.operators if each.name == name)
    return found


def costs(trace: Trace) -> dict[str, tuple[int, int]]:
    slots = STREAMS[OPERATORS]
    rows = trace.operator_rows(lambda name: hash(name), 1)
    found = [dict(zip(slots, row, strict=True)) for row in rows]
    return {each.name: (row["flops"], row["bytes"]) for each, row in zip(trace.operators, found, strict=True)}


def test_an_operator_ran_on_what_it_or_an_operator_inside_launched_something_on() -> None:
    trace = parsed(
        operator("aten::linear", 0, 20, **VIEW), operator("aten::mm", 2, 9, **PRODUCT), kernel("sgemm_128x64", 2),
        operator("aten::view", 30, 31, **VIEW),
    )  # fmt: skip
    assert [each.processor for each in trace.operators] == [H100, H100, CPU]
    assert [each.flags & ON_DEVICE != 0 for each in trace.operators] == [True, True, False]
    assert of(trace, "aten::mm").dtype == "float32"


def test_a_range_without_a_name_has_its_row() -> None:
    trace = parsed(operator("aten::mm", 2, 9, **PRODUCT), operator("", 0, 20) | {"cat": "user_annotation"})
    texts = ["", *trace.strings]
    rows = trace.operator_rows(lambda text: texts.index(text, 1), 1)
    assert [texts[row[STREAMS[OPERATORS].index("operator")]] for row in rows] == ["", "aten::mm"]
    assert texts.count("") == 2


def test_where_cuda_is_used_but_no_kernel_was_seen_it_is_not_known_what_an_operator_ran_on() -> None:
    told = json.dumps({"traceEvents": [operator("aten::mm", 2, 9, **PRODUCT)]}).encode()
    assert of(Trace.parse(told, 0, CPU, uses_cuda=True), "aten::mm").processor == ""
    assert of(Trace.parse(told, 0, CPU, uses_cuda=False), "aten::mm").processor == CPU


def test_float32_on_tensor_cores_is_tf32() -> None:
    for name in ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", "cutlass_80_tensorop_s1688gemm_128x128"):
        assert of(parsed(operator("aten::mm", 2, 9, **PRODUCT), kernel(name, 2)), "aten::mm").dtype == "tf32"
    half = {**PRODUCT, "Input type": ["c10::Half", "c10::Half"]}
    name = "cutlass_80_tensorop_s1688f16gemm"
    assert of(parsed(operator("aten::mm", 2, 9, **half), kernel(name, 2)), "aten::mm").dtype == "float16"


def test_what_an_operator_with_a_cost_runs_inside_counts_with_it() -> None:
    trace = parsed(
        operator("aten::_convolution", 0, 20, **CONVOLUTION), operator("aten::addmm_of_its_own", 2, 9),
        operator("aten::mm", 3, 8, **PRODUCT), operator("aten::mm ", 30, 40, **PRODUCT),
    )  # fmt: skip
    found = costs(trace)
    assert found["aten::_convolution"][0] == 2 * (2 * 9 * 8 * 4 * 3)
    assert found["aten::mm"] == found["aten::addmm_of_its_own"] == (0, 0)


def test_a_node_of_autograd_that_launches_something_itself_has_no_known_cost() -> None:
    trace = parsed(operator("ReluBackward0", 0, 9, **VIEW), kernel("mine", 0), operator("TBackward0", 20, 29, **VIEW))
    assert costs(trace) == {"ReluBackward0": (-1, -1), "TBackward0": (0, 0)}


def test_without_shapes_no_cost_is_known() -> None:
    assert set(costs(parsed(operator("aten::mm", 0, 9), operator("aten::view", 10, 12))).values()) == {(-1, -1)}
