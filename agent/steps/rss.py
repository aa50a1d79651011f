"""Rss memory of this process, read now and then on the training thread: its own row of /proc, kept open.

The one invariant: the descriptor is ours or -1; one that the job closed, and perhaps uses anew, is not touched.
"""

from __future__ import annotations

import contextlib
import os

_STATM = "/proc/self/statm"
EVERY_NS = 50_000_000  # memory does not change faster than one wants to see it; 1.5 µs in 50 ms are nothing


class Rss:
    """read() on the training thread; close() on any, also in a forked child."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._next_ns = 0
        self.fd = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        self._link = os.readlink(f"/proc/self/fd/{self.fd}")

    def read(self, now: int) -> int:
        """Bytes; 0 if it was read a moment ago, or cannot be."""
        if now < self._next_ns or self.fd < 0:
            return 0
        self._next_ns = now + EVERY_NS
        try:
            return int(os.pread(self.fd, 64, 0).split()[1]) * self._page_bytes
        except (OSError, ValueError, IndexError):  # the job closes descriptors that it does not know
            return 0

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{fd}") == self._link:
                    os.close(fd)
