"""How far the process is with torch: whether it is imported, has begun to use CUDA, and has a process group."""

from __future__ import annotations

import sys
from typing import Any


def torch_is_imported() -> bool:
    """Whether all of torch is there, and not just what an import in progress has made of it so far."""
    torch = sys.modules.get("torch")
    return torch is not None and not getattr(torch.__spec__, "_initializing", False)


def is_distributed() -> bool:
    """Whether the job has a process group."""
    distributed: Any = sys.modules.get("torch.distributed") if torch_is_imported() else None
    return bool(distributed is not None and distributed.is_available() and distributed.is_initialized())


def cuda_is_in_use() -> bool:
    """Whether the job, which has imported torch, has begun to use CUDA; False in a forked child of one that has."""
    cuda: Any = sys.modules.get("torch.cuda")
    is_initialized = getattr(cuda, "is_initialized", None)  # not there yet while torch is being imported
    return is_initialized is not None and bool(is_initialized())
