"""Where a `probe` command begins and ends: only this file exits the process.

The shell too reports its errors here, and then continues.  An error is one line: `probe: [code] what happened. What to
do.`  Invariant: a Python traceback of probe's own is shown only with PROBE_DEBUG=1.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from probe.errors import Interrupted, OutputError, ProbeError, UsageError

from .argv import arrange
from .output.behind import is_stuck
from .output.colours import ERROR, tell
from .output.printable import Printable
from .program import COMPLETING, VERBS, program

BUG_STATUS = 70  # EX_SOFTWARE of sysexits.h
PIPE_STATUS = 141  # what a shell shows for a program that SIGPIPE ended
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def main() -> NoReturn:
    """The console script: runs sys.argv and exits with its status, at once.

    Python's own shutdown is skipped: a thread of DuckDB or Arrow that asks for the GIL then would abort the process.
    """
    # After `>&-` and the like, no socket of ours may get the number, and using the stream is the error it should be.
    for name, wrong in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, wrong)
            setattr(sys, name, open(file, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # With PYTHONUNBUFFERED, which containers like to set, what a pipe takes only a part of would be lost.
        if isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            stream = open(stream.fileno(), "w", buffering=1, encoding=stream.encoding, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        # A character that the terminal cannot show must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, Printable(stream))
    status = run(sys.argv[1:])
    if is_stuck():
        os._exit(status)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):  # ValueError: a writer closed the stream after that
        status = status or PIPE_STATUS
    except OSError as error:
        status = status or _reported(_not_written(error))
    os._exit(status)


def run(argv: Sequence[str]) -> int:
    """The exit status of one command line; any error has been reported on stderr."""
    try:
        if instruction := os.environ.get(COMPLETING):
            from .completing import answer

            click.echo(answer(instruction))
            return 0
        # Not program.main(): click would handle a closed pipe and Ctrl-C in its own way.
        with program.make_context("probe", arrange(argv, VERBS)) as context:
            status = program.invoke(context)
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as exit:  # --help and --version
        return exit.exit_code
    except (Exception, KeyboardInterrupt) as error:  # the last line of defence: users never see a traceback of ours
        return _reported(error)


def report(error: BaseException) -> int:
    """Print the error's line on stderr; the exit status of a command that it ends."""
    if isinstance(error, BrokenPipeError):  # a reader that has gone does not want errors either
        return PIPE_STATUS
    if os.environ.get("PROBE_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    known = _known(error)
    if known is None:
        text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        tell(sys.stderr, "probe: [bug]", ERROR, f" {text}. This is a bug in probe. PROBE_DEBUG=1 shows where.")
        return BUG_STATUS
    separator = "\n" if "\n" in known.message else " "  # a hint never continues DuckDB's caret line
    text = separator.join(part for part in (known.message.rstrip(), known.hint) if part)
    tell(sys.stderr, f"probe: [{known.code}]", ERROR, f" {text}")
    return known.exit_status


def _reported(error: BaseException) -> int:
    """Likewise, where the command ends, also if stderr takes nothing any more."""
    try:
        return report(error)
    except BrokenPipeError:
        return PIPE_STATUS
    except OSError:  # its disk is full
        known = _known(error)
        return BUG_STATUS if known is None else known.exit_status


def _not_written(error: OSError) -> OutputError:
    hint = "Open it for writing." if error.errno == errno.EBADF else "Free some space, or write elsewhere with -o FILE."
    return OutputError(f"The output could not be written: {error.strerror}.", hint)


def _known(error: BaseException) -> ProbeError | None:
    """The error as one of ours, or None for an unexpected one."""
    if isinstance(error, ProbeError):
        return error
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Interrupted("Interrupted.")
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "probe"
        return UsageError(" ".join(error.format_message().split()), f"Run: {path} --help")
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return _not_written(error)
    return None
