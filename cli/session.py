"""A connection for the length of one verb: the endpoint named where it was guessed, notes told, Ctrl-C passed on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click

import probe
from probe.errors import Interrupted, ProbeError

from .options import KEY

if TYPE_CHECKING:
    from probe.connection import Connection


_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


def say(text: str) -> None:
    """Talk, as opposed to data."""
    print(text, file=sys.stderr)


def connect(endpoint: str | None, timeout: float) -> Connection:
    """What every verb asks through; close it."""
    context = click.get_current_context(silent=True)
    return probe.connect(endpoint, timeout=timeout, key=context.meta.get(KEY) if context is not None else None)


@contextmanager
def connected(endpoint: str | None, timeout: float = 10.0) -> Iterator[Connection]:
    """The connection; without an endpoint the one attached job is used, and said so.

    The first Ctrl-C, SIGTERM or SIGHUP cancels what runs, so that its end is told in order; the second ends the wait.
    """
    with connect(endpoint, timeout) as connection, _cancelled_by_signals(connection):
        if endpoint is None:
            say(f"probe: using {connection.endpoint}, the only attached job")
        try:
            yield connection
        finally:
            for note in connection.notes:
                say(note)


@contextmanager
def _cancelled_by_signals(connection: Connection) -> Iterator[None]:
    pressed = False

    def cancel(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        connection.cancel()

    # A terminal that goes away, or a time-out around us, must not leave a snippet that holds the job.
    wanted = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, cancel) for number in (signal.SIGINT, *wanted)}
    try:
        yield
    except ProbeError as error:
        if pressed and not isinstance(error, Interrupted):
            raise Interrupted("Interrupted.", str(error) if error.code == "eval-timeout" else "") from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if pressed:
        raise Interrupted("Interrupted.")


@contextmanager
def ctrl_c_cancels(connection: Connection) -> Iterator[None]:
    """Ctrl-C ends the call in it, by Interrupted, and nothing else; pressed again it does so again."""
    pressed = False

    def cancel(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        connection.cancel()

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise Interrupted("Interrupted.")
