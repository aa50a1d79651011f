"""`probe tables`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from probe.errors import QueryError, UsageError
from probe.text import nearest

from ...offers import endpoints as jobs
from ...offers import tables
from ...options import Verb, target_option
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import say, wrapped

if TYPE_CHECKING:
    from probe.schema import Column
    from probe.tables.declaration import Table

# What --format json calls a field of a column's declaration -> the field.
FIELDS = {
    "column": "name", "type": "type", "unit": "unit", "meaning": "doc", "null": "null", "source": "source",
    "joins": "joins",
}  # fmt: skip
SELF_TIME = "duration is self time: what a module took itself. A block with its children is total_duration."


@click.command("tables", cls=Verb)
@click.argument("words", nargs=-1, metavar="[TABLE]", shell_complete=tables)
@target_option("Needs none: all jobs have the same tables.", jobs)
@output_options
def command(words: Sequence[str], endpoints: Sequence[str], output: Output) -> None:
    """List the tables, or the columns of one with their units.

    For each column: its type and unit, what it means, when it is NULL, its source, and what it joins with. With
    --format json there is one object per table, with everything known about it.

    \b
    Example:
      probe tables
      probe tables python.torch_trace
      probe tables --format json
    """
    if len(words) > 1:
        raise UsageError(f"Too many words: {' '.join(words[1:])!r}.", "Give one table: probe tables NAME")
    from probe.tables import TABLES

    known = {table.name: table for table in TABLES}
    asked = [find(words[0], known)] if words else sorted(TABLES, key=lambda table: table.name)
    if output.kind in ("json", "ndjson"):  # in which an object may hold others
        return output.show(in_full(asked))
    if output.kind != "table":
        return output.show(columns_of(asked) if words else of_all(asked))
    if not words:
        output.show(of_all(asked))
        return say(SELF_TIME)
    say(wrapped(f"{asked[0].name}: {asked[0].doc}"))
    output.show(of_table(asked[0]))
    return say(f"{wrapped(asked[0].question)}\n{textwrap.indent(formatted(asked[0].example), '  ')}")


def of_all(tables: Iterable[Table]) -> Records:
    return Records(("table", "a row is"), [(table.name, table.doc) for table in tables], wrap_last=True)


def of_table(table: Table) -> Records:
    """To be read: everything about a column in one cell."""
    rows = [(each.name, each.type, each.unit, "\n".join([each.doc, *each.remarks])) for each in table.columns]
    return Records(("column", "type", "unit", "meaning"), rows, wrap_last=True)


def columns_of(tables: Iterable[Table]) -> Records:
    """To be filtered: each fact about a column in a column of its own."""
    rows = [(table.name, *fields_of(column).values()) for table in tables for column in table.columns]
    return Records(("table", *FIELDS), rows)


def in_full(tables: Iterable[Table]) -> Records:
    rows = [
        (each.name, each.doc, list(each.streams), each.question, each.example, [*map(fields_of, each.columns)])
        for each in tables
    ]
    return Records(("table", "row", "streams", "question", "example", "columns"), rows)


def fields_of(column: Column) -> dict[str, Any]:
    return {shown: getattr(column, name) or None for shown, name in FIELDS.items()}


def formatted(sql: str) -> str:
    """An example with one line per clause; long clauses are broken between columns."""
    clauses = re.sub(r" (?=(?:FROM|WHERE|GROUP BY|ORDER BY|LIMIT)\b)", "\n", sql).split("\n")
    lines = [re.sub("(?<!,) ", "\xa0", clause) for clause in clauses]  # textwrap does not break at these
    indent = " " * len("SELECT ")
    return "\n".join(textwrap.fill(line, 76, subsequent_indent=indent) for line in lines).replace("\xa0", " ")


def find(name: str, known: dict[str, Table]) -> Table:
    """The table of that name, with or without its schema.  Raises QueryError."""
    short = {full.partition(".")[2]: full for full in known}
    full = short.get(name, name)
    if full not in known:
        hint = nearest(name.rpartition(".")[2], short, short.__getitem__) or f"Tables: {', '.join(sorted(known))}."
        raise QueryError(f"No table named {name}.", hint, code="unknown-table")
    return known[full]
