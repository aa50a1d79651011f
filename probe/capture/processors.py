"""What each operator ran on, and in which arithmetic: by what it, or what it called, launched on devices.

Called by trace.  A capture of a CPU names its model with the number of threads, since both decide what it can do.
Invariant: a device has the name that torch gives to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..streams import ON_DEVICE
from .launches import Launches
from .operator_call import Event, Operator

# float32 on tensor cores, as cuBLAS, cuDNN and CUTLASS name such kernels: by the type, by the shape of the instruction,
# or by a family that has no other instructions
_TF32 = re.compile(r"tf32|s1688(?!(bf16|f16))|nvjet")


def devices_of(told: Mapping[str, Any]) -> dict[int, str]:
    """Names by index.  told: the whole trace."""
    return {int(each["id"]): str(each["name"]) for each in told.get("deviceProperties", ()) if each.get("name")}


def say_what_ran_where(
    operators: Sequence[Operator], kernels: Sequence[Event], launches: Launches, devices: Mapping[int, str]
) -> None:
    """Say of each operator that launched something, and of those around it, on what."""
    for each in kernels:
        name, at = devices.get(int(each.get("args", {}).get("device", -1)), ""), launches.of(each).place
        is_tf32 = _TF32.search(each["name"]) is not None
        if at >= 0:
            operators[at].launches = True
        while at >= 0:
            operator = operators[at]
            if not operator.flags & ON_DEVICE:
                operator.flags, operator.processor = operator.flags | ON_DEVICE, name
            if is_tf32 and operator.dtype == "float32":
                operator.dtype = "tf32"
            at = operator.caller
