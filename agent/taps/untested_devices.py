"""What stays off where the job uses CUDA or a device backend such as NCCL, because it has been run on one GPU only.

The taps of devices and of collectives and flight_recorder.py check this.
Invariant: where this gives a reason, nothing of ours holds a Work or an event, queries one for completion, or dumps a
Flight Recorder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ... import protocol as wire
from ..torch_state import cuda_is_in_use

_CPU_BACKENDS = frozenset({"gloo", "mpi", "ucc", "undefined"})  # their tensors are on a device only if CUDA is in use


class Untested(Exception):
    """Nothing more may be recorded; the text says why."""


def why_off() -> str:
    """The reason why all this is off in this process, "" if it is not; takes some 5 µs."""
    if cuda_is_in_use():
        return _unless_lifted("CUDA is in use")
    return next((_unless_lifted(f"a process group uses {name}") for name in sorted(_backends() - _CPU_BACKENDS)), "")


def cuda_check() -> Callable[[], None]:
    """A function to call for each operation: it raises Untested once CUDA is in use; until then it takes some 90 ns."""
    is_initialized = sys.modules["torch"].cuda.is_initialized

    def check() -> None:
        if is_initialized() and (why := _unless_lifted("CUDA is in use")):
            raise Untested(why)

    return check


def check_backends(names: Iterable[str]) -> None:
    """Raises Untested if one of these backends of a process group uses devices."""
    for name in sorted(set(names) - _CPU_BACKENDS):
        if why := _unless_lifted(f"a process group uses {name}"):
            raise Untested(why)


def _unless_lifted(what: str) -> str:
    return "" if os.environ.get(wire.UNTESTED_SWITCH) == "1" else f"{what}, and {wire.UNTESTED}"


def _backends() -> set[str]:
    """The names of the backends of all process groups, from texts such as `cpu:gloo,cuda:nccl`.

    No group is touched: one whose last reference ended here would be shut down on the agent's thread.
    """
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    texts = list(getattr(getattr(distributed, "_world", None), "pg_backend_config", {}).values())
    return {each.rpartition(":")[2] for text in texts for each in str(text).split(",")} - {""}
