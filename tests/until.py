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

    It looks every_s after the first time, then less and less often: a look may be a whole command.
    """
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"not in {seconds} s: {why() or repr(found)}"
        time.sleep(every_s)
        every_s = max(every_s, min(1.2 * every_s, _MOST_S))
    return found
