"""Every table there is, sorted by name.  A new table is one file here and one name in _FILES."""

from __future__ import annotations

from importlib import import_module

from .declaration import Table

_FILES = (
    "agents", "collectives", "columns", "compile_trace", "dataloader_trace", "drops", "evals", "gpu_trace",
    "iterator_trace", "nccl_trace", "overhead", "process_trace", "profile", "stack", "step_trace", "tables",
    "torch_trace",
)  # fmt: skip

TABLES: list[Table] = [import_module(f".{name}", __name__).TABLE for name in _FILES]
