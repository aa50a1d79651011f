"""probe.tables: what tables there are, out of their own declarations."""

from __future__ import annotations

from collections.abc import Sequence

from ..schema import Column, Columns
from .declaration import Table


def derive(tables: Sequence[Table]) -> Columns:
    import pyarrow as pa

    return {
        "table_name": pa.array([table.name for table in tables]),
        "description": pa.array([table.doc for table in tables]),
        "column_count": pa.array([len(table.columns) for table in tables]),
        "streams": pa.array([list(table.streams) for table in tables], pa.list_(pa.string())),
        "question": pa.array([table.question for table in tables]),
        "example": pa.array([table.example for table in tables]),
    }


TABLE = Table(
    name="probe.tables",
    doc="One row per table.",
    columns=(
        Column("table_name", "VARCHAR", "", "Name with schema.", "declaration", joins="table_name of probe.columns"),
        Column("description", "VARCHAR", "", "What one row is.", "declaration"),
        Column("column_count", "INTEGER", "", "How many columns it has.", "declaration"),
        Column("streams", "VARCHAR[]", "", "The raw streams it is made of.", "declaration"),
        Column("question", "VARCHAR", "", "What the example answers.", "declaration"),
        Column("example", "VARCHAR", "", "A query to start with.", "declaration"),
    ),
    derive_catalogue=derive,
    question="What tables are there?",
    example="SELECT table_name, description FROM probe.tables",
)  # fmt: skip
