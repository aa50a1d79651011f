"""Every table there is, sorted by name.  A new table is one file here and one line in TABLES."""

from __future__ import annotations

from .agents import TABLE as AGENTS
from .collectives import TABLE as COLLECTIVES
from .columns import TABLE as COLUMNS
from .dataloader_trace import TABLE as DATALOADER_TRACE
from .declaration import Table
from .drops import TABLE as DROPS
from .evals import TABLE as EVALS
from .gpu_trace import TABLE as GPU_TRACE
from .nccl_trace import TABLE as NCCL_TRACE
from .overhead import TABLE as OVERHEAD
from .process_trace import TABLE as PROCESS_TRACE
from .stack import TABLE as STACK
from .step_trace import TABLE as STEP_TRACE
from .tables import TABLE as TABLES_TABLE
from .torch_trace import TABLE as TORCH_TRACE

TABLES: list[Table] = [
    AGENTS,
    COLLECTIVES,
    COLUMNS,
    DATALOADER_TRACE,
    DROPS,
    EVALS,
    GPU_TRACE,
    NCCL_TRACE,
    OVERHEAD,
    PROCESS_TRACE,
    STACK,
    STEP_TRACE,
    TABLES_TABLE,
    TORCH_TRACE,
]
