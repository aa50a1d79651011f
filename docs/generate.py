"""Writes docs/reference/ from the declarations in the code: `make docs`.  A test fails where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path

import click

from probe.cli.entry import BUG_STATUS, PIPE_STATUS
from probe.cli.program import VERBS, program
from probe.cli.verbs.tables import SELF_TIME, laid_out
from probe.errors import CODES
from probe.schema import COMMON, Column
from probe.tables import TABLES
from probe.tables.declaration import Table

REFERENCE = Path(__file__).parent / "reference"
WIDTH = 80


def main() -> None:
    for name, text in pages().items():
        (REFERENCE / name).parent.mkdir(exist_ok=True)
        (REFERENCE / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """File name -> text of every generated page."""
    every = {"commands.md": commands(), "errors.md": errors(), "tables.md": tables()}
    return every | {f"tables/{entry.name}.md": of_table(entry) for entry in TABLES}


def commands() -> str:
    parts = ["# Commands", "What `--help` prints."]
    with click.Context(program, info_name="probe", terminal_width=WIDTH, help_option_names=["-h", "--help"]) as top:
        parts += ["## probe", fenced(program.get_help(top))]
        for verb in VERBS:
            command = program.get_command(top, verb)
            assert command is not None
            with click.Context(command, info_name=verb, parent=top) as context:
                parts += [f"## {verb}", fenced(command.get_help(context))]
    return page(parts)


def errors() -> str:
    rows = [(kind.exit_status, f"`{code}`", when) for code, (kind, when) in CODES.items()]
    rows.append((BUG_STATUS, "`bug`", "Something nobody foresaw: a bug of probe. `PROBE_DEBUG=1` shows where."))
    rows.sort()
    return page(
        [
            "# Exit statuses and error codes",
            "An error is one line on stderr: `probe: [code] what happened. What to do.` Codes and statuses are "
            "stable: scripts may go by them.",
            "The status is 0 only if the command did what it was asked. "
            f"It is {PIPE_STATUS}, without a word, when the reader of its output has closed the pipe. "
            "`probe run` ends with the status of its command; 128 and the signal's number where a signal ended it.",
            table(("status", "code", "when"), rows),
        ]
    )


def tables() -> str:
    rows = [(f"[{entry.name}](tables/{entry.name}.md)", entry.doc) for entry in sorted(TABLES, key=attrgetter("name"))]
    return page(
        [
            "# Tables",
            "`probe tables` prints this list, `probe tables NAME` what there is to say of one; `--format json` has all "
            "of it. In SQL it stands in `probe.tables` and `probe.columns`, and as comments in DuckDB's own catalogue "
            "(`duckdb_columns()`, `duckdb_views()`). Queries for every day: [the cookbook](../cookbook.md).",
            table(("table", "a row is"), rows),
            f"{SELF_TIME} Absent values are NULL, never 0 or -1. Every SUM is true: rows are exclusive facts that add "
            "up, and what includes its children is called `total_…`. Units stand in the names of columns; a time "
            "without one is in seconds.",
            "What tables of rows have in common, and can be joined on:",
            columns(COMMON),
        ]
    )


def of_table(entry: Table) -> str:
    made = [f"The raw streams it is made of: {', '.join(map('`{}`'.format, entry.streams))}."] if entry.streams else []
    example = [entry.question, fenced(laid_out(entry.example), "sql")]
    return page([f"# {entry.name}", entry.doc, *example, columns(entry.columns), *made, "[All tables](../tables.md)"])


def columns(every: Sequence[Column]) -> str:
    rows = [(f"`{each.name}`", each.type, each.unit, " <br> ".join([each.doc, *each.remarks])) for each in every]
    return table(("column", "type", "unit", "meaning"), rows)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


def page(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
