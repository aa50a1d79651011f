"""python.kernel_trace: one row per kernel, copy or fill that a capture has seen on a device."""

from __future__ import annotations

import numpy as np

from ...arrays.arrow import coded, nullable
from ...arrays.integers import NONE, find
from ...derive.module_names import names_of
from ...derive.operators import Operators
from ...derive.partition import Partition
from ...schema import COMMON, Column, Columns
from ...streams import KERNELS, MARKS, OPERATORS, SPANS
from ..declaration import DEPOSIT, Table


def derive(part: Partition) -> Columns:
    """A kernel belongs to the step in which it was launched; it may run in a later one."""
    for stream in (SPANS, MARKS):  # a rank may leave now, and not when a column asks for them
        part.rows(stream)
    rows, operators, strings = part.rows(KERNELS), Operators(part), part.log.strings
    place = find(rows["operator"], operators.seq)
    known = place != NONE
    called, began = rows["launched_ns"], np.where(known, np.append(operators.start, 0)[place], rows["start_ns"])
    launched = np.where(called > 0, called, began)
    return {
        "start_ns": rows["start_ns"],
        "step": part.timeline.step(launched),
        "in_eval": lambda: part.timeline.in_eval(launched),
        "kernel": lambda: coded(rows["kernel"], strings),
        "kind": lambda: coded(rows["kind"], strings),
        "operator": lambda: coded(np.where(known, np.append(operators.rows["operator"], 0)[place], 0), strings),
        "operator_seq": lambda: nullable(rows["operator"], rows["operator"] > 0),
        "module": lambda: coded(np.where(known, np.append(operators.module, 0)[place], 0), names_of(part.log)),
        "device": lambda: nullable(rows["device"], rows["device"] >= 0),
        "stream": lambda: nullable(rows["queue"], rows["queue"] >= 0),
        "duration": lambda: (rows["end_ns"] - rows["start_ns"]) / 1e9,
        "queued": lambda: nullable((rows["start_ns"] - called) / 1e9, called > 0),
        "bytes": lambda: nullable(rows["bytes"], rows["bytes"] >= 0),
    }


_UNKNOWN = "The profiler did not tell"

TABLE = Table(
    name="python.kernel_trace",
    doc="One row per kernel, copy or fill on a device in the steps that `probe ENDPOINT capture` has captured.  "
    "Kernels of different streams may overlap.  The rows stay until detach: of each rank the latest 200 000.",
    columns=(
        *COMMON,
        Column("kernel", "VARCHAR", "", "Name of the kernel, or what is copied.", "torch.profiler, by CUPTI"),
        Column("kind", "VARCHAR", "", "kernel, gpu_memcpy or gpu_memset.", "torch.profiler, by CUPTI"),
        Column("operator", "VARCHAR", "", "The operator that launched it, or the annotation around the call that did.",
               "correlation of CUPTI", f"{_UNKNOWN}, or the operator's row was overwritten.",
               "operator of python.op_trace"),
        Column("operator_seq", "BIGINT", "", "Number of that operator's row.", "correlation of CUPTI", f"{_UNKNOWN}.",
               "seq of python.op_trace"),
        Column("module", "VARCHAR", "", "The operator's module.", "python.op_trace", "Same as there.",
               "module of python.op_trace"),
        Column("device", "INTEGER", "", "Index of the device.", "torch.profiler, by CUPTI", f"{_UNKNOWN}."),
        Column("stream", "INTEGER", "", "Number of the CUDA stream.", "torch.profiler, by CUPTI", f"{_UNKNOWN}."),
        Column("duration", "DOUBLE", "s", "Time on the device.", "torch.profiler, by CUPTI"),
        Column("queued", "DOUBLE", "s", "From the call that launched it, or its graph, to its start; long where the "
               "device is behind the host.", "torch.profiler, by CUPTI", f"{_UNKNOWN}."),
        Column("bytes", "BIGINT", "B", "Bytes that were copied or filled.", "torch.profiler, by CUPTI", "Kernels."),
    ),
    streams=(KERNELS, OPERATORS),
    derive=derive,
    of_each_rank=True,
    final=DEPOSIT,
    question="Which kernels does the device's time go into?",
    example="SELECT kernel, COUNT(*) AS calls, SUM(duration) AS device_s FROM python.kernel_trace GROUP BY 1 "
    "ORDER BY device_s DESC LIMIT 10",
)  # fmt: skip
