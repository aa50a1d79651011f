"""What users see of an error, and the exit status that goes with it.

Called by cli/entry.py, which then exits, and by the shell, which continues.  An error is one line: `probe: [code] what
happened. What to do.`  Invariant: a Python traceback of probe's own is shown only with PROBE_DEBUG=1.
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


def report(error: BaseException) -> int:
    """Print the error's line on stderr; the exit status of a command that it ends."""
    if isinstance(error, BrokenPipeError):  # a reader that has gone does not want errors either
        return PIPE_STATUS
    if os.environ.get("PROBE_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    known = _known(error)
    if known is None:
        text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        print(f"probe: [bug] {text}. This is a bug in probe. PROBE_DEBUG=1 shows where.", file=sys.stderr)
        return BUG_STATUS
    separator = "\n" if "\n" in known.message else " "  # a hint never continues DuckDB's caret line
    text = separator.join(part for part in (known.message.rstrip(), known.hint) if part)
    print(f"probe: [{known.code}] {text}", file=sys.stderr)
    return known.exit_status


def not_written(error: OSError) -> OutputError:
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
        return not_written(error)
    return None
