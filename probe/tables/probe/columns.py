"""probe.columns: what every column means, out of the declarations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from ...arrays.arrow import columns_of
from ...schema import Column, Columns
from ..declaration import Table


def derive(tables: Sequence[Table]) -> Columns:
    names = [column.name for column in TABLE.columns]
    said = ((table.name, *(text or None for text in astuple(column))) for table in tables for column in table.columns)
    return columns_of(TABLE.columns, [dict(zip(names, values, strict=True)) for values in said])


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
