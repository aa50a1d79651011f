"""`probe ENDPOINT sql`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType

import click

from probe.errors import Interrupted, UsageError

from ..options import SECONDS, Verb, endpoint_option, one_endpoint
from ..shell.dot_commands import FORMS, is_command
from ..shell.lines import run
from ..shell.shell import Shell
from ..shell.statements import is_complete


@click.command("sql", cls=Verb)
@click.argument("words", nargs=-1, metavar="")
@endpoint_option
@click.option("--open", "open_steps", is_flag=True, help="Show the step that is still running, too.")
@click.option("--timeout", type=SECONDS, metavar="SECONDS", default=10.0, show_default=True,
              help="Seconds to wait for a silent rank.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(FORMS), metavar="FORMAT", default="table", show_default=True,
              help=f"{', '.join(FORMS)}.")  # fmt: skip
def command(words: Sequence[str], endpoints: Sequence[str], open_steps: bool, timeout: float, form: str) -> None:
    """Ask one question after another in DuckDB SQL.

    A shell whose connection stays. Statements end with `;`, Tab completes tables and columns, Ctrl-C cancels a
    query, .help lists commands such as .watch. If stdin is no terminal its statements are run up to the first that
    fails.

    \b
    Example:
      probe 4242 sql
      probe 4242 sql --format csv < questions.sql
    """
    if any(" " in word for word in words):
        raise UsageError("sql takes its statements from the terminal or stdin.", 'Run: probe ENDPOINT query "SQL"')
    at_terminal = sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())
    with closing(Shell(one_endpoint(endpoints, words), timeout, form, open_steps, at_terminal)) as shell, _ended():
        if at_terminal:
            from ..shell.prompt import interact

            interact(shell)
        else:
            for text in _inputs():
                run(shell, text)
                if shell.ended:
                    break


def _inputs() -> Iterator[str]:
    """What stdin has, a command or whole statements at a time, as soon as it has come."""
    text = ""
    try:
        for line in sys.stdin:
            text += line
            if (text == line and is_command(text)) or (";" in line and is_complete(text)):
                yield text
                text = ""
    except UnicodeDecodeError as error:
        raise UsageError("The SQL on stdin is not UTF-8 text.") from error
    yield text


@contextmanager
def _ended() -> Iterator[None]:
    """SIGTERM ends the shell in order: a terminal that was taken over is given back."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except SystemExit:
        raise Interrupted("Interrupted.") from None
    finally:
        signal.signal(signal.SIGTERM, before)
