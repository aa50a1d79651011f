"""Waiting for what is meant: a test that sleeps for long enough is slow on an idle machine and wrong on a busy one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")


_MOST_S = 0.3  # between two looks


def until(
    look: Callable[[], Found | None], seconds: float = 30.0, every_s: float = 0.02, why: Callable[[], object] = str
) -> Found:
    """What `look` finds, once that is true; an AssertionError with what `why` says if it is not within the seconds.

    It looks every_s after the first time, then less and less often, and pauses for about as long as a look takes: that
    may be a whole command.
    """
    end = (now := time.monotonic()) + seconds
    while not (found := look()):
        took_s = time.monotonic() - now
        assert time.monotonic() < end, f"not in {seconds} s: {why() or repr(found)}"
        time.sleep(max(every_s, min(took_s, 1.0)))
        every_s = max(every_s, min(1.2 * every_s, _MOST_S))
        now = time.monotonic()
    return found


def stop(pid: int) -> None:
    """Stop a process, and return once each of its threads stands still: a signal is delivered after kill() returns."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: set(states(pid)) == {"T"})


def states(pid: int) -> str:
    """The kernel's letter for the state of each thread."""
    letters = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):  # it ended
            letters.append(Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2][1])
    return "".join(letters)
