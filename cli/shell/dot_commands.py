"""What a line of input does: a command that begins with a dot and needs no `;`, or SQL statements.

Called by the prompt and, for a file, by the verb sql.  A new command is one function and one line in COMMANDS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from probe.errors import UsageError
from probe.text import nearest

from ..options import SECONDS
from ..output.formats import Output
from ..output.result import Records
from ..output.writers import BINARY, WRITERS
from ..program import program
from ..questions import NAMES, listed, read
from ..session import say, wrapped
from .completion import Candidate
from .shell import Shell
from .statements import split
from .watch import watch

FORMATS = tuple(format for format in WRITERS if format not in BINARY)
_WITHOUT_DOT = {"help": ".help", "quit": ".quit", "exit": ".quit"}  # what people type by habit
_WATCH = "For example: .watch 2 SELECT * FROM probe.agents"


class Command(NamedTuple):
    """run: gets the rest of the line, stripped; words: what may follow the name, for completion."""

    usage: str
    doc: str
    run: Callable[[Shell, str], None]
    words: tuple[str, ...] = ()


def run(shell: Shell, text: str) -> None:
    """Do what the text says, statement by statement.  Raises ProbeError."""
    if not is_command(text):
        for statement in split(text):
            shell.last = statement
            shell.show(shell.ask(statement))
        return
    name, _, rest = _WITHOUT_DOT.get(_word(text), text.strip()).partition(" ")
    if name not in COMMANDS:
        raise UsageError(f"No such command: {name}.", nearest(name, COMMANDS) or "Type .help")
    COMMANDS[name].run(shell, rest.strip().rstrip(";").rstrip())


def is_command(text: str) -> bool:
    return text.lstrip().startswith(".") or _word(text) in _WITHOUT_DOT


def _word(text: str) -> str:
    return text.strip().rstrip(";").lower()


def offered(line: str) -> list[Candidate]:
    """What the last word of a command's line may become."""
    name, space, word = line.lstrip().rpartition(" ")
    if not space:
        return [Candidate(each, command.doc) for each, command in COMMANDS.items() if each.startswith(word)]
    words: Sequence[str] = COMMANDS[name].words if name in COMMANDS else ()
    if name.strip() == ".schema":
        from probe.tables import TABLES

        words = sorted(table.name for table in TABLES)
    return [Candidate(each) for each in words if word in (each[: len(word)], each.partition(".")[2][: len(word)])]


def _schema(shell: Shell, rest: str) -> None:
    if rest:
        _verb("tables", "--format", shell.format, "--", rest)
        return
    from probe.tables import TABLES

    ordered = sorted(TABLES, key=lambda table: table.name)
    every = [(table.name, column.name, column.type, column.unit) for table in ordered for column in table.columns]
    Output(shell.format).write(Records(("table", "column", "type", "unit"), every))


def _verb(name: str, *words: str) -> None:
    """Run the verb of the command line itself, one that needs no connection."""
    with program.make_context("probe", [name, *words]) as context:
        program.invoke(context)


def _ask(shell: Shell, rest: str) -> None:
    if not rest:
        Output(shell.format).write(listed())
        return
    question = read(rest)
    shell.connection.require_one_job()
    shell.last = question.sql
    shell.show(shell.ask(question.sql))
    say(f"\n{wrapped(question.text)}")


def _watch(shell: Shell, rest: str) -> None:
    seconds, _, sql = rest.partition(" ")
    try:
        every = SECONDS.convert(seconds, None, None)
    except click.BadParameter:
        raise UsageError(f"{seconds!r} is not a number of seconds.", _WATCH) from None
    several = split(sql) or [shell.last]
    if len(several) > 1 or not several[0]:
        what = "Only one statement at a time can be watched." if sql else "There is no statement to repeat yet."
        raise UsageError(what, _WATCH)
    shell.last = several[0]
    watch(shell, every, shell.last)


def _open(shell: Shell, rest: str) -> None:
    if rest:
        shell.open_steps = _one_of(rest, ("on", "off")) == "on"
    say(f"The step that is still running is {'shown' if shell.open_steps else 'not shown'}.")


def _rows(shell: Shell, rest: str) -> None:
    if rest and rest != "all" and not (rest.isdecimal() and int(rest)):
        raise UsageError(f"{rest!r} is not a number of rows.", "For example: .rows 100, or .rows all")
    if rest:
        shell.most_rows = None if rest == "all" else int(rest)
    say(f"The first {shell.most_rows} rows of a result are shown." if shell.most_rows else "All rows are shown.")


def _format(shell: Shell, rest: str) -> None:
    shell.format = _one_of(rest, FORMATS) if rest else shell.format
    say(f"Results are written as {shell.format}.")


def _connect(shell: Shell, rest: str) -> None:
    shell.connect(rest or shell.connection.endpoint)
    say(f"Connected to {shell.title}.")


def _help(shell: Shell, rest: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        click.echo(f"{command.usage:<{width}}  {command.doc}")
    click.echo("Statements are DuckDB SQL and end with `;`. Ctrl-C cancels a running one.\n"
               "Tab completes, Ctrl-R searches the history.")  # fmt: skip


def _one_of(word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise UsageError(f"{word!r} is not one of {', '.join(known)}.", nearest(word, known))
    return word


COMMANDS = {
    ".tables": Command(".tables", "List the tables.", lambda shell, rest: _verb("tables", "--format", shell.format)),
    ".schema": Command(".schema [TABLE]", "Show the columns of a table, or of all.", _schema),
    ".ask": Command(".ask [QUESTION]", "Ask a question that has a name, or list them.", _ask, tuple(NAMES)),
    ".watch": Command(".watch SECONDS [SQL]", "Repeat a statement until a key is pressed.", _watch),
    ".open": Command(".open [on|off]", "Show the step that is still running, or not.", _open, ("on", "off")),
    ".format": Command(f".format [{'|'.join(FORMATS)}]", "Set the format of results.", _format, FORMATS),
    ".rows": Command(".rows [N|all]", "Set how many rows a terminal shows.", _rows, ("all",)),
    ".connect": Command(".connect [ENDPOINT]", "Connect again, or to another job.", _connect),
    ".help": Command(".help", "Show this.", _help),
    ".quit": Command(".quit", "Leave, as Ctrl-D does.", lambda shell, rest: setattr(shell, "ended", True)),
}
