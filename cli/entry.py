"""Where a `probe` command begins and ends.  Here alone the process exits; what went wrong is told by
cli/error_output.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from .argv import arrange
from .error_output import BUG_STATUS, PIPE_STATUS, not_written, tell
from .program import VERBS, program

__all__ = ["BUG_STATUS", "PIPE_STATUS", "main", "run"]


def main() -> NoReturn:
    """The console script: runs sys.argv and exits with its status, at once.

    Python's own end is left out: a thread of DuckDB or Arrow that asks for the GIL then would abort the process.
    """
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):  # ValueError: a writer has closed it after that
        status = status or PIPE_STATUS
    except OSError as error:
        status = status or tell(not_written(error))
    os._exit(status)


def run(argv: Sequence[str]) -> int:
    """The exit status of one command line; whatever went wrong has been told on stderr."""
    try:
        # Not program.main(): click's own would turn a closed pipe and Ctrl-C into something else.
        with program.make_context("probe", arrange(argv, VERBS)) as context:
            status = program.invoke(context)
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as exit:  # --help and --version
        return exit.exit_code
    except (Exception, KeyboardInterrupt) as error:  # the last line of defence: a user never reads a traceback of ours
        return tell(error)


def _open_what_is_closed() -> None:
    """After `>&-` and the like: no socket of ours may get the number, and to use it is the error that it should be."""
    for name, wrong in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, wrong)
            setattr(sys, name, open(file, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
