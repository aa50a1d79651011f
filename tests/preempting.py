"""A job whose handler of a signal raises, as a scheduler's SIGTERM has it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NUMBER = signal.SIGUSR1


class Preempted(Exception):
    """What the handler raises."""


def preempt() -> None:
    """Send this process the signal; the handler runs before this returns."""
    os.kill(os.getpid(), NUMBER)


@contextmanager
def preempting() -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        raise Preempted

    before = signal.signal(NUMBER, handler)
    try:
        yield
    finally:
        signal.signal(NUMBER, before)
