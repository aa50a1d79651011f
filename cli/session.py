"""A connection for the length of one verb: it names a guessed endpoint, prints notes, and is cancelled by Ctrl-C."""

from __future__ import annotations

import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

import probe
from probe.errors import Interrupted, ProbeError
from probe.text import title

from .options import KEY
from .output.colours import NOTE, tell
from .signals import on_signals

if TYPE_CHECKING:
    from probe.connection import Connection
    from probe.query.result import Result

# A terminal that goes away, or a timeout around us, must not leave a snippet that holds the job.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_signals = SimpleNamespace(pressed=False, pausing=False)  # of the connection in use: a signal has come; pause() runs


def say(text: str) -> None:
    """Print on stderr, where everything that is not data goes."""
    print(text, file=sys.stderr)


def say_note(text: str) -> None:
    """Likewise, what should be known about the data."""
    tell(sys.stderr, text, NOTE)


def say_missing(result: Result) -> None:
    """Which ranks have no rows in it, since they do not answer any more."""
    for note in result.notes:
        if note.code == "silent":
            say_note(note.text)


def say_overwritten(left: Mapping[int, tuple[int, int]], what: str, told: str) -> None:
    """That newer rows have overwritten some.  left: rank -> how many there are still, of how many; told: what is known
    of those alone."""
    if left:
        still, ever = map(sum, zip(*left.values(), strict=True))
        say_note(f"Only the last {still:,} of {ever:,} {what} of {title(sorted(left))} are left: {told} these alone.")


def wrapped(text: str) -> str:
    """The text wrapped to the width of the terminal."""
    return textwrap.fill(text, min(shutil.get_terminal_size().columns, 120))


def connect(endpoint: str | None, timeout: float) -> Connection:
    """The connection that every verb uses, with the key given by --key; close it.  Prints why a job has no server."""
    context = click.get_current_context(silent=True)
    connection = probe.connect(endpoint, timeout=timeout, key=context.meta.get(KEY) if context is not None else None)
    connection.restore_servers()
    for note in connection.notes:  # the next call has its own
        say_note(note)
    connection.notes = []
    return connection


@contextmanager
def connected(endpoint: str | None, timeout: float = 10.0) -> Iterator[Connection]:
    """A connection; without an endpoint to the only attached job, which stderr then names.  Prints notes at the end."""
    with connect(endpoint, timeout) as connection, cancelled_by_signals(connection.cancel):
        connection.is_unwanted = lambda: bool(_signals.pressed)
        if endpoint is None:
            say_guessed(connection.endpoint)
        for line in connection.skipped:
            say(line)
        try:
            yield connection
        finally:
            for note in connection.notes:
                say_note(note)


def say_guessed(endpoint: str) -> None:
    say(f"probe: using {endpoint}, the only attached job")


@contextmanager
def cancelled_by_signals(call: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C, SIGTERM or SIGHUP calls `call`, which cancels what is running, so that its end is reported
    properly; the second stops waiting for that."""
    _signals.pressed = False

    def cancel() -> None:
        if _signals.pressed:
            raise KeyboardInterrupt
        _signals.pressed = True
        call()
        if _signals.pausing:  # sleep() would go on
            raise Interrupted("Interrupted.")

    try:
        with on_signals(_ENDING, cancel):
            yield
    except ProbeError as error:
        if _signals.pressed and not isinstance(error, Interrupted):
            raise Interrupted("Interrupted.", str(error) if error.code == "eval-timeout" else "") from error
        raise
    if _signals.pressed:
        raise Interrupted("Interrupted.")


def pause(seconds: float) -> None:
    """Sleep between two calls of a connection; a signal that comes now, or came after the last call, ends it."""
    _signals.pausing = True
    try:
        if _signals.pressed:
            raise Interrupted("Interrupted.")
        time.sleep(seconds)
    finally:
        _signals.pausing = False


@contextmanager
def ctrl_c_cancels(connection: Connection) -> Iterator[None]:
    """Ctrl-C ends the call inside, with Interrupted, and nothing else; it may be pressed again."""
    pressed = False

    def cancel() -> None:
        nonlocal pressed
        pressed = True
        connection.cancel()

    before, connection.is_unwanted = connection.is_unwanted, lambda: pressed
    try:
        with on_signals((signal.SIGINT,), cancel):
            yield
    finally:
        connection.is_unwanted = before
    if pressed:
        raise Interrupted("Interrupted.")
