"""The state of torch in this process: whether it is imported, uses CUDA, may be asked, and has a process group."""

from __future__ import annotations

import sys
from typing import Any

_devices_are_left_alone = False


def torch_is_imported() -> bool:
    """Whether torch is completely imported: False while its import is in progress."""
    torch = sys.modules.get("torch")
    return torch is not None and not getattr(torch.__spec__, "_initializing", False)


def is_distributed() -> bool:
    """Whether the job has a process group."""
    distributed: Any = sys.modules.get("torch.distributed") if torch_is_imported() else None
    return bool(distributed is not None and distributed.is_available() and distributed.is_initialized())


def cuda_is_in_use() -> bool:
    """Whether the job, which has imported torch, uses CUDA already; False in a forked child of a process that does."""
    cuda: Any = sys.modules.get("torch.cuda")
    is_initialized = getattr(cuda, "is_initialized", None)  # missing while torch is being imported
    return is_initialized is not None and bool(is_initialized())


def leave_devices_alone(yes: bool) -> None:
    """After attach --no-devices, for as long as the agent is there."""
    global _devices_are_left_alone
    _devices_are_left_alone = yes


def devices_are_left_alone() -> bool:
    return _devices_are_left_alone


def cuda_may_be_asked() -> bool:
    """Whether CUDA is in use and nothing forbids to ask its allocator or profiler: not the user, nor that it is ROCm,
    which was never tested."""
    return cuda_is_in_use() and not _devices_are_left_alone and not sys.modules["torch"].version.hip
