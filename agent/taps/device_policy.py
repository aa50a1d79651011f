"""Which devices and backends are left alone: those that were not tested, and all of them after attach --no-devices.

The taps of devices and of collectives and flight_recorder.py check this.
Invariant: where this gives a reason, nothing of ours holds a Work or an event, queries one for completion, or dumps a
Flight Recorder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from ... import protocol as wire
from ..noop import noop
from ..torch_state import cuda_is_in_use, devices_are_left_alone, leave_devices_alone

_CPU_BACKENDS = frozenset({"gloo", "mpi", "ucc", "undefined"})  # their tensors are on a device only if CUDA is in use
_TESTED = "nccl"

ALL_LEFT_ALONE = f"devices, {wire.UNWANTED}"  # of a job that does not use any yet


class LeftAlone(Exception):
    """Nothing more may be recorded; the text says why."""


def leave_all_alone(yes: bool) -> None:
    """Before the taps are made, for as long as they are there."""
    leave_devices_alone(yes)


def are_recorded() -> bool:
    """Whether devices are, of a kind that was tested."""
    return not devices_are_left_alone()


def why_off() -> str:
    """The reason why all this is off in this process, "" if it is not; takes some 5 µs."""
    if cuda_is_in_use() and (why := _why_not_cuda()):
        return why
    return next((why for name in sorted(_backends()) if (why := _why_not(name))), "")


def cuda_check() -> Callable[[], None]:
    """A function to call for each operation: it raises LeftAlone once CUDA is in use, if that is to be left alone."""
    why = _why_not_cuda()
    if not why:
        return noop
    is_initialized = sys.modules["torch"].cuda.is_initialized

    def check() -> None:
        if is_initialized():
            raise LeftAlone(why)

    return check


def check_backends(names: Iterable[str]) -> None:
    """Raises LeftAlone if one of these backends of a process group is to be left alone."""
    for name in sorted(set(names)):
        if why := _why_not(name):
            raise LeftAlone(why)


def _why_not_cuda() -> str:
    if devices_are_left_alone():
        return f"CUDA is in use, {wire.UNWANTED}"
    return f"ROCm is in use, {wire.UNTESTED}" if sys.modules["torch"].version.hip else ""


def _why_not(backend: str) -> str:
    if backend in _CPU_BACKENDS or (backend == _TESTED and not devices_are_left_alone()):
        return ""
    return f"a process group uses {backend}, {wire.UNWANTED if devices_are_left_alone() else wire.UNTESTED}"


def _backends() -> set[str]:
    """The names of the backends of all process groups, from texts such as `cpu:gloo,cuda:nccl`.

    No group is touched: one whose last reference ended here would be shut down on the agent's thread.
    """
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    texts = list(getattr(getattr(distributed, "_world", None), "pg_backend_config", {}).values())
    return {each.rpartition(":")[2] for text in texts for each in str(text).split(",")} - {""}
