"""python.module_cost: one row per captured step, module and stage: what its operators cost, and what bounds them."""

from __future__ import annotations

import numpy as np

from ...arrays.arrow import coded, nullable
from ...derive.module_names import names_of
from ...derive.partition import Partition
from ...derive.roofline import BOUNDS, STAGES, Floats, Roofline
from ...host.peaks.known import peaks
from ...schema import COMMON, Column, Columns
from ...streams import KERNELS, MARKS, OPERATORS, SPANS
from ..declaration import DEPOSIT, Table


def derive(part: Partition) -> Columns:
    """All rows, those of the step that is in progress too, as python.op_trace has them."""
    for stream in (SPANS, MARKS, KERNELS):  # a rank may leave now, and not when a column asks for them
        part.rows(stream)
    known, strings = peaks(), part.log.strings
    found = Roofline(part, known)
    sources = {key: known[name].source for key, name in strings.items() if name in known}

    def rate(amounts: Floats) -> object:
        """Per second of the time in operators whose cost is known."""
        took = found.known_s > 0
        return nullable(np.divide(amounts, found.known_s, out=np.zeros(found.count), where=took), took)

    def share(values: Floats) -> object:
        return nullable(values, ~np.isnan(values))

    return {
        "start_ns": found.start,
        "step": found.step,
        "in_eval": found.in_eval,
        "module": lambda: coded(found.module, names_of(part.log)),
        "stage": lambda: coded(found.stage, STAGES),
        "operators": lambda: found.operators,
        "duration": lambda: found.host_s,
        "device_duration": lambda: nullable(found.device_s, found.is_on_device & ~np.isnan(found.device_s)),
        "known_pct": lambda: share(100 * found.known_share),
        "flops": lambda: nullable(found.flops, found.has_cost),
        "bytes": lambda: nullable(found.bytes, found.has_cost),
        "flops_s": lambda: rate(found.flops.astype(np.float64)),
        "memory_gbps": lambda: rate(found.bytes / 1e9),
        "processor": lambda: coded(found.processor, strings),
        "peak_source": lambda: coded(found.processor, sources),
        "peak_share": lambda: share(found.peak_share),
        "bound": lambda: coded(found.bound, BOUNDS),
    }


_NO_SHAPES = "The capture was made without --shapes"
_NO_COST = f"{_NO_SHAPES}, or no operator has a known cost."
_OVERWRITTEN = "kernels of theirs may have been overwritten (probe.drops)"
_NO_RATE = f"{_NO_COST[:-1]}, it is not known what they ran on, or {_OVERWRITTEN}."

TABLE = Table(
    name="python.module_cost",
    doc="One row per rank, captured step, module and stage: what the operators of python.op_trace cost there, and what "
    "bounds them by the roofline model.  Rates and shares are those of operators whose FLOPs and bytes are known; "
    "known_pct says how much of the time they took.  Captured steps take longer than others, above all on the host.",
    columns=(
        *COMMON,
        Column("module", "VARCHAR", "", "Module, or class of the optimizer, as in python.op_trace, without the modules "
               "that it calls.", "python.op_trace", "Same as there.", "module of python.op_trace"),
        Column("stage", "VARCHAR", "", "forward, backward, or step for an optimizer.", "python.op_trace",
               "Outside of modules, and no backward.", "stage of python.torch_trace"),
        Column("operators", "BIGINT", "", "Calls of operators.", "torch.profiler"),
        Column("duration", "DOUBLE", "s", "Time of the operators on the host.", "torch.profiler"),
        Column("device_duration", "DOUBLE", "s", "Time on the device of what they launched.",
               "torch.profiler, by CUPTI", f"They launched nothing, or {_OVERWRITTEN}."),
        Column("known_pct", "DOUBLE", "%", "Share of the time in operators whose FLOPs and bytes are known; of the "
               "device's time where they launched something.", "python.op_trace",
               f"There was no such time, it is not known what they ran on, or {_OVERWRITTEN}."),
        Column("flops", "BIGINT", "", "Floating-point operations of these, as in python.op_trace.", "python.op_trace",
               _NO_COST),
        Column("bytes", "BIGINT", "B", "Bytes of the tensors that these read and write: more than memory has to move "
               "where a cache or a fused kernel saves some.", "python.op_trace", _NO_COST),
        Column("flops_s", "DOUBLE", "1/s", "FLOPs per second of their time.", "flops and times", _NO_RATE),
        Column("memory_gbps", "DOUBLE", "GB/s", "Bytes per second of their time, in 10^9.", "bytes and times",
               _NO_RATE),
        Column("processor", "VARCHAR", "", "The device that they ran on, else the CPU with its number of threads.",
               "torch.profiler, /proc/cpuinfo", "Same as there.", "processor of python.op_trace"),
        Column("peak_source", "VARCHAR", "", "Who says what the processor can do: its data sheet, or a measurement by "
               "`probe doctor --peak`, with its date and versions.", "probe doctor --peak, data sheets",
               "No peak of it is known."),
        Column("peak_share", "DOUBLE", "", "Share of the peak that is nearer, of arithmetic in these types or of the "
               "memory; 1 is all of it.", "the other columns and the peaks",
               f"{_NO_COST[:-1]}, no peak is known, or {_OVERWRITTEN}."),
        Column("bound", "VARCHAR", "", "compute or memory: at the peaks, arithmetic or memory would take longer; "
               "overhead: it comes to less than a tenth of either; launch: the host took at least twice as long to "
               "launch as the device to run.", "the other columns and the peaks",
               f"{_NO_SHAPES}, no peak is known, or known_pct is below 50 or NULL."),
    ),
    streams=(OPERATORS,),
    derive=derive,
    final=DEPOSIT,
    question="Which modules are bound by arithmetic, and which by memory?",
    example="SELECT module, stage, SUM(duration) AS host_s, SUM(device_duration) AS device_s, MODE(bound) AS bound, "
    "AVG(peak_share) AS peak_share FROM python.module_cost GROUP BY ALL "
    "ORDER BY device_s DESC NULLS LAST, host_s DESC LIMIT 10",
)  # fmt: skip
