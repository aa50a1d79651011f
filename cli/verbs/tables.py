"""`probe tables`."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from probe.errors import QueryError, UsageError

from ..argv import nearest
from ..options import Verb, process_option
from ..output.formats import check, chosen, format_options, show
from ..output.result import Records
from ..session import say

if TYPE_CHECKING:
    from probe.schema import Column
    from probe.tables.declaration import Table

SELF_TIME = "duration is self time: what a module took itself. A block with its children is total_duration."
NESTED = ("json", "ndjson")  # formats in which an object may hold others


@click.command("tables", cls=Verb)
@click.argument("words", nargs=-1, metavar="[TABLE]")
@process_option
@format_options
def command(words: Sequence[str], endpoints: Sequence[str], form: str | None, output: str | None) -> None:
    """List the tables, or the columns of one with their units.

    Of a column: its type and unit, what it means, when it is NULL, what it is read from, and what it joins with.
    As json it is one object a table, with all there is to say of it.

    \b
    Example:
      probe tables
      probe tables python.torch_trace
      probe tables --format json
    """
    check(form, output)
    if len(words) > 1:
        raise UsageError(f"Too many words: {' '.join(words[1:])!r}.", "Give one table: probe tables NAME")
    from probe.tables import TABLES

    known = {table.name: table for table in TABLES}
    asked = [find(words[0], known)] if words else sorted(TABLES, key=lambda table: table.name)
    kind = chosen(form, output)
    if kind in NESTED:
        return show(in_full(asked), form, output)
    if kind != "table":
        return show(columns_of(asked) if words else of_all(asked), form, output)
    if not words:
        show(of_all(asked), form, output, wrap_last=True)
        return say(SELF_TIME)
    say(folded(f"{asked[0].name}: {asked[0].doc}"))
    show(of_table(asked[0]), form, output, wrap_last=True)
    return say(f"{folded(asked[0].question)}\n{textwrap.indent(laid_out(asked[0].example), '  ')}")


def of_all(tables: Iterable[Table]) -> Records:
    return Records(("table", "a row is"), [(table.name, table.doc) for table in tables])


def of_table(table: Table) -> Records:
    """To be read: what is to say of a column under one another."""
    rows = [(column.name, column.type, column.unit, "\n".join(said(column))) for column in table.columns]
    return Records(("column", "type", "unit", "meaning"), rows)


def columns_of(tables: Iterable[Table]) -> Records:
    """To be filtered: each thing in a column of its own."""
    fields = [{"table": table.name, **fields_of(column)} for table in tables for column in table.columns]
    return Records(list(fields[0]), [list(each.values()) for each in fields])


def in_full(tables: Iterable[Table]) -> Records:
    rows = [
        (each.name, each.doc, list(each.streams), each.question, each.example, [*map(fields_of, each.columns)])
        for each in tables
    ]
    return Records(("table", "row", "streams", "question", "example", "columns"), rows)


def fields_of(column: Column) -> dict[str, Any]:
    return {
        "column": column.name,
        "type": column.type,
        "unit": column.unit or None,
        "meaning": column.doc,
        "null": column.null or None,
        "source": column.source,
        "joins": column.joins or None,
    }


def said(column: Column) -> list[str]:
    return [column.doc, *column.remarks]


def laid_out(sql: str) -> str:
    """An example with a line for each clause, long ones broken between columns."""
    clauses = re.sub(r" (?=(?:FROM|WHERE|GROUP BY|ORDER BY|LIMIT)\b)", "\n", sql).split("\n")
    lines = [re.sub("(?<!,) ", "\xa0", clause) for clause in clauses]  # which textwrap takes for no place to break at
    indent = " " * len("SELECT ")
    return "\n".join(textwrap.fill(line, 76, subsequent_indent=indent) for line in lines).replace("\xa0", " ")


def folded(text: str) -> str:
    """As wide as the terminal."""
    return textwrap.fill(text, min(shutil.get_terminal_size().columns, 120))


def find(name: str, known: dict[str, Table]) -> Table:
    """The table of that name, its schema left out or not.  Raises QueryError."""
    short = {full.partition(".")[2]: full for full in known}
    full = short.get(name, name)
    if full not in known:
        hint = nearest(name, [*known, *short]) or f"There are: {', '.join(sorted(known))}."
        raise QueryError(f"No table named {name}.", hint, code="unknown-table")
    return known[full]
