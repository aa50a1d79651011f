"""Waiting for what is meant: a test that sleeps for long enough is slow on an idle machine and wrong on a busy one."""

from __future__ import annotations

import time
from collections.abc import Callable
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
