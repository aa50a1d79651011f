"""probe.columns: what every column means, out of the declarations."""

from __future__ import annotations

from collections.abc import Sequence

from ..schema import Column, Columns
from .declaration import Table


def derive(tables: Sequence[Table]) -> Columns:
    import pyarrow as pa

    every = [(table, column) for table in tables for column in table.columns]
    return {
        "table_name": pa.array([table.name for table, _ in every]),
        "column_name": pa.array([column.name for _, column in every]),
        "type": pa.array([column.type for _, column in every]),
        "unit": pa.array([column.unit or None for _, column in every], pa.string()),
        "description": pa.array([column.doc for _, column in every]),
        "source": pa.array([column.source or None for _, column in every], pa.string()),
        "null_when": pa.array([column.null or None for _, column in every], pa.string()),
        "joins_with": pa.array([column.joins or None for _, column in every], pa.string()),
    }


TABLE = Table(
    name="probe.columns",
    doc="One row per column of every table.",
    columns=(
        Column("table_name", "VARCHAR", "", "Name with schema.", "declaration", joins="table_name of probe.tables"),
        Column("column_name", "VARCHAR", "", "Name of the column.", "declaration"),
        Column("type", "VARCHAR", "", "SQL type.", "declaration"),
        Column("unit", "VARCHAR", "", "Unit.", "declaration", "The column has no unit."),
        Column("description", "VARCHAR", "", "What it means.", "declaration"),
        Column("source", "VARCHAR", "", "What it is read from.", "declaration", "It is obvious."),
        Column("null_when", "VARCHAR", "", "When it is NULL.", "declaration", "The column is never NULL."),
        Column("joins_with", "VARCHAR", "", "Columns of other tables that mean the same.", "declaration",
               "No other column does."),
    ),
    derive_catalogue=derive,
    question="What does each column of a table mean, and in which unit is it?",
    example="SELECT column_name, type, unit, description FROM probe.columns WHERE table_name = 'python.torch_trace'",
)  # fmt: skip
