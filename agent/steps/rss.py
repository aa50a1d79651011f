"""Resident memory (RSS) of this process, read now and then on the training thread from /proc/self/statm, kept open.

Invariant: the descriptor is ours or -1.  A descriptor that the job closed, and perhaps reused, is not closed here.
"""

from __future__ import annotations

import contextlib
import os

_STATM = "/proc/self/statm"
EVERY_NS = 50_000_000  # often enough to see memory change; 1.5 µs per 50 ms is negligible


class Rss:
    """read() runs on the training thread; close() on any thread, also in a forked child."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._next_ns = 0
        self.fd = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        self._target = os.readlink(f"/proc/self/fd/{self.fd}")

    def read(self, now: int) -> int:
        """Bytes; 0 if it was read less than EVERY_NS ago or cannot be read."""
        if now < self._next_ns or self.fd < 0:
            return 0
        self._next_ns = now + EVERY_NS
        try:
            return int(os.pread(self.fd, 64, 0).split()[1]) * self._page_bytes
        except (OSError, ValueError, IndexError):  # jobs close descriptors that they do not know
            return 0

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{fd}") == self._target:
                    os.close(fd)
