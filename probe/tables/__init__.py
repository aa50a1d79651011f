"""Every table there is, sorted by name.  A new table is one file in the room of its schema and one name in _FILES.

It may import `memory`, `derive`, `snapshot`, `host` and `arrays`.  Invariant: no table imports another.
"""

from __future__ import annotations

from importlib import import_module

from .declaration import Table

_FILES = {
    "host": ("gpu_trace", "process_trace"),
    "probe": ("agents", "collectives", "columns", "drops", "evals", "events", "overhead", "tables"),
    "python": (
        "allocation_trace", "call_trace", "compile_trace", "dataloader_trace", "iterator_trace", "kernel_trace",
        "memory_trace", "module_cost", "nccl_trace", "op_trace", "phase_trace", "profile", "stack", "step_trace",
        "tensor_trace", "torch_trace",
    ),
}  # fmt: skip

TABLES: list[Table] = [
    import_module(f".{schema}.{name}", __name__).TABLE for schema, names in _FILES.items() for name in names
]
