"""What an error looks like to a user, and the exit status that goes with it.

Called by cli/entry.py, which then exits, and by the shell, which goes on.  An error is one line: `probe: [code] what
happened. What to do.`  A Python traceback of probe's own is never shown, but with PROBE_DEBUG=1.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback

import click

from probe.errors import Interrupted, OutputError, ProbeError, UsageError

BUG_STATUS = 70  # EX_SOFTWARE of sysexits.h
PIPE_STATUS = 141  # what a shell shows for a program that SIGPIPE ended
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def tell(error: BaseException) -> int:
    """Print the error's line on stderr; the exit status of a command that ends by it."""
    if isinstance(error, BrokenPipeError):  # who reads no more wants to hear nothing either
        return PIPE_STATUS
    _debug(error)
    known = _known(error)
    print(_bug_line(error) if known is None else line(known), file=sys.stderr)
    return BUG_STATUS if known is None else known.exit_status


def line(error: ProbeError) -> str:
    separator = "\n" if "\n" in error.message else " "  # a hint never hangs at the end of DuckDB's caret line
    text = separator.join(part for part in (error.message.rstrip(), error.hint) if part)
    return f"probe: [{error.code}] {text}"


def not_written(error: OSError) -> OutputError:
    way = "Open it for writing." if error.errno == errno.EBADF else "Make room, or choose another place."
    return OutputError(f"The output could not be written: {error.strerror}.", way)


def _known(error: BaseException) -> ProbeError | None:
    """The error as one of ours; None where nobody foresaw it."""
    if isinstance(error, ProbeError):
        return error
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Interrupted("Interrupted.")
    if isinstance(error, click.ClickException):
        return _from_click(error)
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return not_written(error)
    return None


def _from_click(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "probe"
    return UsageError(" ".join(error.format_message().split()), f"Run: {path} --help")


def _bug_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"probe: [bug] {what}. This is a bug of probe. PROBE_DEBUG=1 shows where."


def _debug(error: BaseException) -> None:
    if os.environ.get("PROBE_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
