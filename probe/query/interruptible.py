"""A call that stays in C for long, on a thread of its own: a signal's handler would have to wait for its end else.

Used by Connection.query for DuckDB.  The one invariant: when interruptibly() returns or raises, the call is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_JOIN_S = 0.1  # a lock held with a time-out lets signal handlers in


def interruptibly(call: Callable[[], Any], interrupt: Callable[[], None], unwanted: Callable[[], bool]) -> Any:
    """What the call returns, or raises.  interrupt() ends it, once `unwanted` holds or a handler raises here.

    It is repeated until the call is over, for DuckDB forgets what comes before it begins.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # raised again on the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=run, name="probe-query", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_JOIN_S)
            if unwanted():
                interrupt()
    except BaseException:  # a handler raised: KeyboardInterrupt
        while thread.is_alive():
            interrupt()
            thread.join(_JOIN_S)
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
