"""probe.tables: what tables there are, out of their own declarations."""

from __future__ import annotations

from collections.abc import Sequence

from ...arrays.arrow import columns_of
from ...schema import Column, Columns
from ..declaration import Table


def derive(tables: Sequence[Table]) -> Columns:
    names = [column.name for column in TABLE.columns]
    said = ((each.name, each.doc, len(each.columns), each.streams, each.question, each.example) for each in tables)
    return columns_of(TABLE.columns, [dict(zip(names, values, strict=True)) for values in said])


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
