"""python.op_trace: one row per call of an operator that a capture has seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.arrow import coded, nullable
from ...arrays.integers import NONE
from ...derive.module_names import names_of
from ...derive.operators import Operators
from ...derive.partition import Partition
from ...schema import COMMON, Column, Columns
from ...streams import ANNOTATION, BACKWARD, KERNELS, MARKS, OPERATORS, SPANS
from ..declaration import DEPOSIT, Table


def derive(part: Partition) -> Columns:
    """All rows, those of the step that is in progress too: each is complete in itself."""
    for stream in (SPANS, MARKS, KERNELS):  # a rank may leave now, and not when a column asks for them
        part.rows(stream)
    found, strings = Operators(part), part.log.strings
    rows, flags = found.rows, found.rows["flags"]

    def caller() -> Any:
        return coded(np.where(found.caller == NONE, 0, np.append(rows["operator"], 0)[found.caller]), strings)

    def on_device() -> Any:
        duration, known = found.on_device
        return nullable(duration / 1e9, known)

    return {
        "start_ns": found.start,
        "step": part.timeline.step(found.start),
        "in_eval": lambda: part.timeline.in_eval(found.start, found.thread),
        "seq": found.seq,
        "operator": lambda: coded(rows["operator"], strings),
        "caller": caller,
        "module": lambda: coded(found.module, names_of(part.log)),
        "backward": (flags & BACKWARD) != 0,
        "annotation": (flags & ANNOTATION) != 0,
        "thread": rows["native_id"],
        "duration": lambda: found.own / 1e9,
        "total_duration": lambda: found.total / 1e9,
        "device_duration": on_device,
        "shapes": lambda: coded(rows["shapes"], strings),
        "dtype": lambda: coded(rows["dtype"], strings),
        "processor": lambda: coded(rows["processor"], strings),
        "flops": lambda: nullable(rows["flops"], rows["flops"] >= 0),
        "bytes": lambda: nullable(rows["bytes"], rows["bytes"] >= 0),
    }


_NO_SHAPES = "The capture was made without --shapes"

TABLE = Table(
    name="python.op_trace",
    doc="One row per call of an operator in the steps that `probe ENDPOINT capture` has captured, as torch's profiler "
    "saw it on the threads of the training.  duration is time of its own, so durations can be summed.  The rows stay "
    "until detach: of each rank the latest 300 000.",
    columns=(
        *COMMON,
        Column("seq", "BIGINT", "", "Number of the row in its process.", "order in the trace",
               joins="operator_seq of python.kernel_trace"),
        Column("operator", "VARCHAR", "", "Name of the operator, such as aten::addmm; of an annotation what it says.",
               "torch.profiler"),
        Column("caller", "VARCHAR", "", "The operator that it ran in.", "nesting of their times",
               "Outermost operators."),
        Column("module", "VARCHAR", "", "Innermost module in whose call it ran, as in python.torch_trace; of an "
               "optimizer's step its class; of a backward the module of the operator whose backward it is.",
               "module calls; numbers of autograd's nodes", "It ran outside of modules, or that is not known.",
               "module of python.torch_trace"),
        Column("backward", "BOOLEAN", "", "Whether it is a part of a backward pass.", "torch.profiler"),
        Column("annotation", "BOOLEAN", "", "Whether it is no operator but a range that was given a name, by "
               "record_function.", "torch.profiler"),
        Column("thread", "BIGINT", "", "Native id of the thread.", "torch.profiler",
               joins="thread of python.torch_trace, native_id of python.stack"),
        Column("duration", "DOUBLE", "s", "Time on the host without the operators that it called.", "torch.profiler"),
        Column("total_duration", "DOUBLE", "s", "Time on the host with the operators that it called.",
               "torch.profiler"),
        Column("device_duration", "DOUBLE", "s", "Time on the device of what it launched itself.",
               "torch.profiler, by CUPTI", "It launched nothing, or kernels of its may have been "
               "overwritten (probe.drops)."),
        Column("shapes", "VARCHAR", "", "Dimensions of its arguments, of tensors and lists of them.",
               "torch.profiler", f"{_NO_SHAPES}, or it had no arguments."),
        Column("dtype", "VARCHAR", "", "Type of its first tensor; tf32 if a device computed float32 in that.",
               "torch.profiler; names of kernels", f"{_NO_SHAPES}, or it had no tensors."),
        Column("processor", "VARCHAR", "", "The device that it, or what it called, launched something on; else the CPU "
               "with its number of threads.", "torch.profiler, /proc/cpuinfo",
               "The job uses CUDA, and the capture saw no kernels.", "processor of python.module_cost"),
        Column("flops", "BIGINT", "", "Floating-point operations, a multiplication and addition counted as two; 0 for "
               "what torch counts none of, such as additions alone, and for what it runs inside of an operator that "
               "has them.", "shapes, by the formulas of torch.utils.flop_counter",
               f"{_NO_SHAPES}, or nothing is known of the operator."),
        Column("bytes", "BIGINT", "B", "Bytes of the tensors that it reads and writes; 0 for views, and for what it "
               "runs inside of an operator that has them.", "shapes and dtypes", "Same as flops."),
    ),
    streams=(OPERATORS,),
    derive=derive,
    of_each_rank=True,
    final=DEPOSIT,
    question="Which operators does the time go into?",
    example="SELECT operator, COUNT(*) AS calls, SUM(duration) AS self_s FROM python.op_trace WHERE NOT annotation "
    "GROUP BY 1 ORDER BY self_s DESC LIMIT 10",
)  # fmt: skip
