"""`probe ENDPOINT sql`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing

import click

from probe.errors import Interrupted, UsageError

from ...options import Verb, endpoint_option, one_endpoint, open_option, timeout_option
from ...output.formats import format_options
from ...shell.dot_commands import is_command, run
from ...shell.shell import Shell
from ...shell.statements import is_complete
from ...signals import on_signals


@click.command("sql", cls=Verb)
@click.argument("words", nargs=-1, metavar="")
@endpoint_option
@open_option
@timeout_option(10.0)
@format_options(binary=False)
def command(
    words: Sequence[str], endpoints: Sequence[str], open_steps: bool, timeout: float, format: str | None
) -> None:
    """Open a shell for DuckDB SQL on the job.

    The connection stays open. Statements end with `;`, Tab completes tables and columns, Ctrl-C cancels a query, .help
    lists commands such as .watch. If stdin is not a terminal, its statements are run until one fails.

    \b
    Example:
      probe 4242 sql
      probe 4242 sql --format csv < questions.sql
    """
    if any(" " in word for word in words):
        raise UsageError("sql reads its statements from the terminal or stdin.", 'Run: probe ENDPOINT query "SQL"')
    at_terminal = sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())
    with closing(Shell(one_endpoint(endpoints, words), timeout, format or "table", open_steps, at_terminal)) as shell:
        try:
            with on_signals((signal.SIGTERM,), sys.exit):  # so that .watch restores the terminal
                if at_terminal:
                    from ...shell.prompt import interact

                    interact(shell)
                else:
                    for text in inputs():
                        run(shell, text)
                        if shell.ended:
                            break
        except SystemExit:
            raise Interrupted("Interrupted.") from None


def inputs() -> Iterator[str]:
    """What stdin has, a command or whole statements at a time, as soon as it arrives.  Raises UsageError."""
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
