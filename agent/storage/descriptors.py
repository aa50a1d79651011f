"""Whether a number of a descriptor still means what was opened: some jobs close all that they do not know.

The number may then be a file or a socket of the job's.  Invariant: nothing is read from it, written to it or closed.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any


def is_same(descriptor: int, known: os.stat_result | None) -> bool:
    """known: what os.fstat() said when it was opened."""
    with contextlib.suppress(OSError):
        return descriptor >= 0 and known is not None and os.path.samestat(os.fstat(descriptor), known)
    return False


def close(socket: Any, known: os.stat_result | None) -> None:
    """Close the socket, or leave its number to the job."""
    if is_same(socket.fileno(), known):
        socket.close()
    else:
        socket.detach()
