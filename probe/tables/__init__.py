"""Every table there is, sorted by name.  A new table is one file here and one line in TABLES."""

from __future__ import annotations

from ..schema import Table
from .agents import TABLE as AGENTS
from .columns import TABLE as COLUMNS
from .evals import TABLE as EVALS
from .nccl_trace import TABLE as NCCL_TRACE
from .overhead import TABLE as OVERHEAD
from .tables import TABLE as TABLES_TABLE
from .torch_trace import TABLE as TORCH_TRACE

TABLES: list[Table] = [
    AGENTS,
    COLUMNS,
    EVALS,
    NCCL_TRACE,
    OVERHEAD,
    TABLES_TABLE,
    TORCH_TRACE,
]
