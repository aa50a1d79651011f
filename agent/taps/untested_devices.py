"""What stays off where the job uses CUDA or a backend of devices such as NCCL: none of it has been run on a GPU yet.

Asked by the taps of devices and of collectives and by flight_recorder.py.  The one invariant: where this gives a
reason, nothing of ours holds a Work or an event, asks one whether it is done, or dumps a Flight Recorder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ... import protocol as wire
from ..torch_state import cuda_is_in_use

_SWITCH = "PROBE_UNTESTED_CUDA"  # 1 in the job's environment lifts this, for those who test on a device
_OF_THE_CPU = frozenset({"gloo", "mpi", "ucc", "undefined"})  # their tensors are on a device only if CUDA is in use


class Untested(Exception):
    """Nothing more may be recorded; the text says why."""


def why_off() -> str:
    """Why all this is off in this process, "" where it is not; some 5 µs."""
    if _is_lifted():
        return ""
    if cuda_is_in_use():
        return _because("CUDA is in use")
    return next((_because(f"a process group uses {name}") for name in sorted(_backends() - _OF_THE_CPU)), "")


def cuda_check() -> Callable[[], None]:
    """A function for each operation that raises Untested once CUDA is in use; until then it takes some 90 ns."""
    is_initialized = sys.modules["torch"].cuda.is_initialized

    def check() -> None:
        if is_initialized() and not _is_lifted():
            raise Untested(_because("CUDA is in use"))

    return check


def check_backends(names: Iterable[str]) -> None:
    """Raises Untested if one of these backends of a process group works on devices."""
    unknown = sorted(set(names) - _OF_THE_CPU)
    if unknown and not _is_lifted():
        raise Untested(_because(f"a process group uses {unknown[0]}"))


def _is_lifted() -> bool:
    return os.environ.get(_SWITCH) == "1"


def _because(what: str) -> str:
    return f"{what}, and {wire.UNTESTED}"


def _backends() -> set[str]:
    """The names of the backends of all process groups, out of texts such as `cpu:gloo,cuda:nccl`.

    No group is touched: one whose last reference ended here would be shut down on the agent's thread.
    """
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    texts = list(getattr(getattr(distributed, "_world", None), "pg_backend_config", {}).values())
    return {each.rpartition(":")[2] for text in texts for each in str(text).split(",")} - {""}
