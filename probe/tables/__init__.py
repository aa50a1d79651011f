"""Every table there is, sorted by name.  A new table is one file here and one line in TABLES."""

from __future__ import annotations

from ..schema import Table
from . import agents, columns, evals, tables, torch_trace

TABLES: list[Table] = [
    agents.TABLE,
    columns.TABLE,
    evals.TABLE,
    tables.TABLE,
    torch_trace.TABLE,
]
