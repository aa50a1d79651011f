"""Where a `probe` command begins and ends: only this file exits the process.  cli/error_output.py reports errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from .argv import arrange
from .error_output import BUG_STATUS, PIPE_STATUS, not_written, report
from .program import VERBS, program

__all__ = ["BUG_STATUS", "PIPE_STATUS", "main", "run"]


def main() -> NoReturn:
    """The console script: runs sys.argv and exits with its status, at once.

    Python's own shutdown is skipped: a thread of DuckDB or Arrow that asks for the GIL then would abort the process.
    """
    # After `>&-` and the like, no socket of ours may get the number, and using the stream is the error it should be.
    for name, wrong in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, wrong)
            setattr(sys, name, open(file, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):  # ValueError: a writer closed the stream after that
        status = status or PIPE_STATUS
    except OSError as error:
        status = status or report(not_written(error))
    os._exit(status)


def run(argv: Sequence[str]) -> int:
    """The exit status of one command line; any error has been reported on stderr."""
    try:
        # Not program.main(): click would handle a closed pipe and Ctrl-C in its own way.
        with program.make_context("probe", arrange(argv, VERBS)) as context:
            status = program.invoke(context)
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as exit:  # --help and --version
        return exit.exit_code
    except (Exception, KeyboardInterrupt) as error:  # the last line of defence: users never see a traceback of ours
        return report(error)
