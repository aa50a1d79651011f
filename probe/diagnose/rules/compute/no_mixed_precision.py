"""Matrix products in full float32 on a device that has faster ones."""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import SilentError, UsageError
from ...figures import pct
from ...measures.live_values import is_readable, of_model, value
from ...measures.module_calls import BY_STEP, Calls
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.5  # of the step in forward and backward: below that something else comes first
_PRECISION = (
    "[sorted({str(p.dtype) for p in ROOT.parameters()}), __import__('torch').get_float32_matmul_precision(), "
    "__import__('torch').cuda.get_device_capability()[0]]"
)
_TF32_FROM = 8  # major compute capability: Ampere


def _find(watched: Watched) -> Iterator[Finding]:
    if not any(row["on_cuda"] for row in watched.rows(BY_STEP)):
        raise UsageError("No module runs on a CUDA device.")
    calls = Calls(watched)
    if calls.is_on_device_with_room():
        return
    root = calls.modules[0].root
    told = value(watched, of_model(_PRECISION, root)) if is_readable(root) else None
    if told is None:
        raise SilentError("The precision of the model could not be read.", code="unseen")
    if told[0] != ["torch.float32"] or told[1] != "highest" or told[2] < _TF32_FROM:
        return
    share = calls.part(calls.modules).share
    if share < LEAST:
        return
    # Whether the job uses autocast is seen nowhere, so this is a hint, and says no more than is known.
    yield Finding(
        f"Full precision: parameters of {root} are float32, and products outside of autocast do not use TF32.",
        why=[f"the device is busy, and forward and backward take {pct(share)} of the step on the host"],
        remedy=f"probe {watched.endpoint} eval \"import torch; torch.set_float32_matmul_precision('high')\"",
        effect="takes effect at once, and products lose precision: 10 bits of each factor instead of 23; in the code: "
        "torch.autocast('cuda', torch.bfloat16) around forward",
        severity="hint", where=root, now="float32_matmul_precision=highest",
    )  # fmt: skip


NO_MIXED_PRECISION: Rule[Watched] = Rule(
    "no-mixed-precision",
    "A busy CUDA device computes in full float32.",
    _find,
    "hint",
    needs=("python.step_trace", "python.torch_trace", "host.gpu_trace"),
    sql=BY_STEP,
    asks=(_PRECISION,),
)
