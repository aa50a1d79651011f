"""The commands of the shell that are no SQL: each begins with a dot, stands on a line of its own and needs no `;`.

Called by cli/shell/lines.py.  A new one is one function and one line in COMMANDS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import click

from probe.errors import UsageError

from ..argv import nearest
from ..options import SECONDS
from ..output.formats import BINARY, WRITERS, write
from ..output.result import Records
from ..program import program
from ..session import say
from .completion import Candidate
from .shell import Shell
from .statements import split
from .watch import watch

FORMS = tuple(form for form in WRITERS if form not in BINARY)
_PLAIN = {"help": ".help", "quit": ".quit", "exit": ".quit"}  # what people type before they know better
_WATCH = "For example: .watch 2 SELECT * FROM probe.agents"


class Command(NamedTuple):
    """words: those that may follow; run gets what follows, stripped."""

    usage: str
    doc: str
    run: Callable[[Shell, str], None]
    words: tuple[str, ...] = ()


def is_command(text: str) -> bool:
    return text.lstrip().startswith(".") or _word(text) in _PLAIN


def obey(shell: Shell, text: str) -> None:
    """Raises UsageError for what is no command."""
    name, _, rest = _PLAIN.get(_word(text), text.strip()).partition(" ")
    if name not in COMMANDS:
        raise UsageError(f"No such command: {name}.", nearest(name, COMMANDS) or "Type .help")
    COMMANDS[name].run(shell, rest.strip().rstrip(";").rstrip())


def offered(line: str) -> list[Candidate]:
    """What the last word of a command's line may become."""
    name, behind, word = line.lstrip().rpartition(" ")
    if not behind:
        return [Candidate(each, command.doc) for each, command in COMMANDS.items() if each.startswith(word)]
    words = _table_names() if name.strip() == ".schema" else COMMANDS[name].words if name in COMMANDS else ()
    return [Candidate(each) for each in words if word in (each[: len(word)], each.partition(".")[2][: len(word)])]


def _table_names() -> list[str]:
    from probe.tables import TABLES

    return sorted(table.name for table in TABLES)


def _word(text: str) -> str:
    return text.strip().rstrip(";").lower()


def _tables(shell: Shell, rest: str) -> None:
    _verb("tables", "--format", shell.form)


def _schema(shell: Shell, rest: str) -> None:
    if rest:
        _verb("tables", "--format", shell.form, "--", rest)
        return
    from probe.tables import TABLES

    ordered = sorted(TABLES, key=lambda table: table.name)
    every = [(table.name, column.name, column.type, column.unit) for table in ordered for column in table.columns]
    write(Records(("table", "column", "type", "unit"), every), shell.form)


def _verb(name: str, *words: str) -> None:
    """The verb of the command line itself, which needs no connection."""
    with program.make_context("probe", [name, *words]) as context:
        program.invoke(context)


def _watch(shell: Shell, rest: str) -> None:
    seconds, _, sql = rest.partition(" ")
    try:
        every = SECONDS.convert(seconds, None, None)
    except click.BadParameter:
        raise UsageError(f"{seconds!r} is no number of seconds.", _WATCH) from None
    several = split(sql) or [shell.last]
    if len(several) > 1 or not several[0]:
        what = "One statement at a time can be watched." if sql else "Nothing has been asked yet."
        raise UsageError(what, _WATCH)
    shell.last = several[0]
    watch(shell, every, shell.last)


def _open(shell: Shell, rest: str) -> None:
    if rest:
        shell.open_steps = _one_of(rest, ("on", "off")) == "on"
    say(f"The step that still runs is {'shown' if shell.open_steps else 'not shown'}.")


def _rows(shell: Shell, rest: str) -> None:
    if rest and rest != "all" and not (rest.isdecimal() and int(rest)):
        raise UsageError(f"{rest!r} is no number of rows.", "For example: .rows 100, or .rows all")
    if rest:
        shell.most_rows = None if rest == "all" else int(rest)
    say(f"Of a result the first {shell.most_rows} rows are shown." if shell.most_rows else "All rows are shown.")


def _format(shell: Shell, rest: str) -> None:
    shell.form = _one_of(rest, FORMS) if rest else shell.form
    say(f"Results are written as {shell.form}.")


def _connect(shell: Shell, rest: str) -> None:
    shell.connect(rest or shell.connection.endpoint)
    say(f"Connected to {shell.whom}.")


def _help(shell: Shell, rest: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        click.echo(f"{command.usage:<{width}}  {command.doc}")
    click.echo("Statements are DuckDB's SQL and end with `;`. Ctrl-C cancels one that runs.\n"
               "Tab completes, Ctrl-R searches what was typed before.")  # fmt: skip


def _quit(shell: Shell, rest: str) -> None:
    shell.ended = True


def _one_of(word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise UsageError(f"{word!r} is not one of {', '.join(known)}.", nearest(word, known))
    return word


COMMANDS = {
    ".tables": Command(".tables", "The tables there are.", _tables),
    ".schema": Command(".schema [TABLE]", "The columns of a table, or of all.", _schema),
    ".watch": Command(".watch SECONDS [SQL]", "Ask again and again, until a key is pressed.", _watch),
    ".open": Command(".open [on|off]", "Whether the step that still runs is shown.", _open, ("on", "off")),
    ".format": Command(f".format [{'|'.join(FORMS)}]", "How results are written.", _format, FORMS),
    ".rows": Command(".rows [N|all]", "How many rows of a result a terminal shows.", _rows, ("all",)),
    ".connect": Command(".connect [ENDPOINT]", "Connect anew, or to another job.", _connect),
    ".help": Command(".help", "This.", _help),
    ".quit": Command(".quit", "Leave; Ctrl-D does, too.", _quit),
}
