"""How far the process is with torch: whether it is imported, and whether a process group exists."""

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
