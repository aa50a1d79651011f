"""Writes docs/reference/ from the declarations in the code: `make docs`.  A test fails if the two differ."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from types import FunctionType
from typing import Any

import click

import probe
from probe.cli.entry import BUG_STATUS, PIPE_STATUS
from probe.cli.program import VERBS, program
from probe.cli.verbs.data.tables import SELF_TIME, formatted
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
    """The text of every generated page, by file name."""
    lists = {"commands.md": commands(), "errors.md": errors(), "python.md": python(), "tables.md": tables()}
    return lists | {f"tables/{entry.name}.md": table_page(entry) for entry in TABLES}


def commands() -> str:
    parts = ["# Commands", "The output of `--help` for the command and for each verb."]
    with click.Context(program, info_name="probe", terminal_width=WIDTH, help_option_names=["-h", "--help"]) as top:
        parts += ["## probe", fenced(program.get_help(top))]
        for verb in VERBS:
            command = program.get_command(top, verb)
            assert command is not None
            with click.Context(command, info_name=verb, parent=top) as context:
                parts += [f"## {verb}", fenced(command.get_help(context))]
    return page(parts)


def errors() -> str:
    named = re.compile(r"\{(\w+)[^}]*\}")  # what a message fills in
    rows = [
        (kind.exit_status, f"`{code}`", named.sub(lambda match: match[1].upper(), when))
        for code, (kind, when) in CODES.items()
    ]
    rows.append((BUG_STATUS, "`bug`", "An unexpected error: a bug in probe. `PROBE_DEBUG=1` shows the traceback."))
    rows.sort()
    return page(
        [
            "# Exit statuses and error codes",
            "An error is one line on stderr: `probe: [code] what happened. What to do.` Below an error in SQL is "
            "the place in its text. Codes and statuses are "
            "stable, so scripts can rely on them.",
            "The status is 0 only if the command did what you asked. "
            f"It is {PIPE_STATUS}, with no message, if the reader of its output closed the pipe. "
            "`probe run` exits with the status of its command, or with 128 plus the signal's number if a signal ended "
            "it.",
            table(("status", "code", "when"), rows),
        ]
    )


def python() -> str:
    """The classes and functions of `import probe`."""
    parts = ["# Python", *described(probe), "All errors are `probe.ProbeError`s: [errors](errors.md)."]
    for name in probe.__all__:
        value = getattr(probe, name)
        if inspect.isfunction(value):
            parts += [f"## probe.{name}", *described(value)]
        elif inspect.isclass(value) and (value is probe.ProbeError or not issubclass(value, probe.ProbeError)):
            names = getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", ())
            kinds = {each: value.__annotations__[each] for each in names}
            fields = [f"`{each}: {getattr(kind, '__forward_arg__', kind)}`" for each, kind in kinds.items()]
            parts += [f"## probe.{name}", *described(value)] + ([f"Fields: {', '.join(fields)}."] if fields else [])
            ours = [base for base in value.__mro__ if base.__module__.startswith("probe.")]
            members = {each: getattr(value, each) for base in ours for each in vars(base) if not each.startswith("_")}
            for each, member in members.items():
                if isinstance(member, FunctionType | property) and member.__doc__:
                    parts += [f"### {name}.{each}", *described(member)]
    return page(parts)


def described(value: Any) -> list[str]:
    """The signature of a function, and the docstring; an example that is a block is code in Markdown."""
    called = inspect.isfunction(value)
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value))) if called else ""
    said = re.sub(r"^Example:$", "Example:\n", inspect.getdoc(value) or "", flags=re.MULTILINE)
    return [f"`{value.__name__}{signature}`", said] if called else [said]


def tables() -> str:
    rows = [(f"[{entry.name}](tables/{entry.name}.md)", entry.doc) for entry in sorted(TABLES, key=attrgetter("name"))]
    return page(
        [
            "# Tables",
            "`probe tables` prints this list, and `probe tables NAME` describes one table; `--format json` has "
            "everything. SQL finds the same in `probe.tables` and `probe.columns`, and in the comments of DuckDB's own "
            "catalogue (`duckdb_columns()`, `duckdb_views()`); `DESCRIBE` shows names and types only. "
            "Everyday queries: [the cookbook](../cookbook.md).",
            table(("table", "rows"), rows),
            f"{SELF_TIME} Missing values are NULL, never 0 or -1. Durations never overlap, so they can be summed; "
            "columns that include children are called `total_…`. Column names contain their units; a time without a "
            "unit is in seconds.",
            "Most tables share these columns, and can be joined on them:",
            columns(COMMON),
        ]
    )


def table_page(entry: Table) -> str:
    source = [f"Derived from the raw streams {', '.join(map('`{}`'.format, entry.streams))}."] if entry.streams else []
    example = [entry.question, fenced(formatted(entry.example), "sql")]
    return page([f"# {entry.name}", entry.doc, *example, columns(entry.columns), *source, "[All tables](../tables.md)"])


def columns(declared: Sequence[Column]) -> str:
    rows = [(f"`{each.name}`", each.type, each.unit, " <br> ".join([each.doc, *each.remarks])) for each in declared]
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
