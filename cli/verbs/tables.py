"""`probe tables`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from probe.errors import QueryError, UsageError

from ..formats import check, format_options, show
from ..options import Verb, endpoint_option
from ..result import Records
from ..session import say
from ..words import nearest

if TYPE_CHECKING:
    from probe.schema import Column, Table

SELF_TIME = "duration is self time: what a module took itself. A block with its children is total_duration."


@click.command("tables", cls=Verb)
@click.argument("words", nargs=-1, metavar="[TABLE]")
@endpoint_option
@format_options
def command(words: Sequence[str], endpoints: Sequence[str], form: str | None, output: str | None) -> None:
    """List the tables, or the columns of one with their units.

    \b
    Example:
      probe tables
      probe tables python.torch_trace
    """
    check(form, output)
    if len(words) > 1:
        raise UsageError(f"Too many words: {' '.join(words[1:])!r}.", "Give one table: probe tables NAME")
    from probe.tables import TABLES

    known = {table.name: table for table in TABLES}
    show(of_table(find(words[0], known)) if words else of_all(known), form, output, wrap_last=True)
    say(SELF_TIME)


def of_all(known: dict[str, Table]) -> Records:
    return Records(("table", "a row is"), [(name, table.doc) for name, table in sorted(known.items())])


def of_table(table: Table) -> Records:
    rows = [(column.name, column.type, column.unit, meaning(column)) for column in table.columns]
    return Records(("column", "type", "unit", "meaning"), rows)


def meaning(column: Column) -> str:
    return f"{column.doc} NULL: {column.null}" if column.null else column.doc


def find(name: str, known: dict[str, Table]) -> Table:
    """The table of that name, its schema left out or not.  Raises QueryError."""
    short = {full.partition(".")[2]: full for full in known}
    full = short.get(name, name)
    if full not in known:
        hint = nearest(name, [*known, *short]) or f"There are: {', '.join(sorted(known))}."
        raise QueryError(f"No table named {name}.", hint, code="unknown-table")
    return known[full]
