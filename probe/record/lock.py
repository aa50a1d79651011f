"""The lock of a job's folder: one recorder of a host writes it at a time.

Taken by the recorder, waited for by `probe run`.  Invariant: it goes with the process that holds it, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

from ..errors import UsageError

_LOOK_S = 0.1


def path(folder: Path) -> Path:
    """Where this host's recorder locks the folder of a job."""
    return folder / f".recorder-{socket.gethostname()}"


def take(folder: Path) -> int:
    """The descriptor that holds the lock.  Raises UsageError if another recorder has it, OSError."""
    lock = os.open(path(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        message = f"Another recorder on this host writes {folder}."
        raise UsageError(message, "Stop it, or give another folder.", "recorded-already") from None
    return lock


def wait(folder: Path, seconds: float) -> bool:
    """Wait until no recorder of this host writes the folder; whether that came within the seconds."""
    end = time.monotonic() + seconds
    while True:
        try:
            os.close(take(folder))
            return True
        except UsageError:
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_S)
        except OSError:  # no folder: nobody writes it
            return True
