"""The lock of a job's folder: one recorder of a host writes it at a time.

Taken by the recorder, and by a reader that takes over what a killed one left; waited for by `probe run`.  Invariant: it
goes with the process that holds it, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from pathlib import Path

from ..errors import UsageError

_LOOK_S = 0.1
_NO_LOCKS = errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK  # of Lustre without `-o flock`, and of NFS
_NONE = "its file system cannot lock files (Lustre can where it is mounted with `-o flock`)"


def path(folder: Path) -> Path:
    """Where this host's recorder locks the folder of a job."""
    return folder / f".recorder-{socket.gethostname()}"


def take(folder: Path, flags: int = os.O_RDWR | os.O_CREAT, patience_s: float = 0.0) -> int:
    """The descriptor that holds the lock.  Raises UsageError if another process has it for so long, OSError."""
    lock, end = os.open(path(folder), flags | os.O_CLOEXEC, 0o644), time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                os.close(lock)
                raise OSError(error.errno, _NONE if error.errno in _NO_LOCKS else error.strerror) from None
            if time.monotonic() >= end:
                os.close(lock)
                message = f"Another recorder on this host writes {folder}."
                raise UsageError(message, "Stop it, or give another folder.", "recorded-already") from None
        time.sleep(_LOOK_S)


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
