"""Where a `probe` command begins and ends.  Here alone errors are printed and the process exits.

An error is one line: `probe: [code] what happened. What to do.`  A Python traceback of probe's own is never
shown, but with PROBE_DEBUG=1.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from probe.errors import Interrupted, OutputError, ProbeError, UsageError

from .program import VERBS, program
from .words import arrange

BUG_STATUS = 70  # EX_SOFTWARE of sysexits.h
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
PIPE_STATUS = 141  # what a shell shows for a program that SIGPIPE ended


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
        status = status or _told(_not_written(error))
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
    except ProbeError as error:
        return _told(error)
    except click.ClickException as error:
        return _told(_from_click(error))
    except (KeyboardInterrupt, click.Abort) as error:
        return _told(Interrupted("Interrupted."), error)
    except BrokenPipeError:
        return PIPE_STATUS
    except OSError as error:
        return _told(_not_written(error)) if error.errno in _NO_ROOM else _bug(error)
    except Exception as error:  # the last line of defence: a user never reads a traceback of ours
        return _bug(error)


def _open_what_is_closed() -> None:
    """After `>&-` and the like: no socket of ours may get the number, and to use it is the error that it should be."""
    for name, wrong in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, wrong)
            setattr(sys, name, open(file, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115


def _told(error: ProbeError, cause: BaseException | None = None) -> int:
    _debug(cause or error)
    separator = "\n" if "\n" in error.message else " "  # a hint never hangs at the end of DuckDB's caret line
    line = separator.join(part for part in (error.message.rstrip(), error.hint) if part)
    print(f"probe: [{error.code}] {line}", file=sys.stderr)
    return error.exit_status


def _from_click(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "probe"
    return UsageError(" ".join(error.format_message().split()), f"Run: {path} --help")


def _not_written(error: OSError) -> OutputError:
    return OutputError(f"The output could not be written: {error.strerror}.", "Make room, or choose another place.")


def _bug(error: Exception) -> int:
    _debug(error)
    text = " ".join(str(error).split())
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    print(f"probe: [bug] {what}. This is a bug of probe. PROBE_DEBUG=1 shows where.", file=sys.stderr)
    return BUG_STATUS


def _debug(error: BaseException) -> None:
    if os.environ.get("PROBE_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
