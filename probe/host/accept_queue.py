"""Connections that a process has not accepted yet: what waits in front of a server, as the kernel counts it.

Called by probe.diagnose.rules.compute.server_saturated.  Invariant: what cannot be read is None.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

_LISTEN = "0A"
_TABLES = ("tcp", "tcp6")


def waiting_connections(pid: int) -> int | None:
    """How many wait at all the TCP ports on which it listens; None if it listens at none, or may not be looked at."""
    try:
        own = set(_sockets(pid))
        queued = [waiting for inode, waiting in _listening(pid) if inode in own]
    except OSError:
        return None
    return sum(queued) if queued else None


def _sockets(pid: int) -> Iterator[str]:
    """The inodes of its sockets."""
    for descriptor in os.scandir(f"/proc/{pid}/fd"):
        kind, _, inode = os.path.basename(os.path.realpath(descriptor.path)).partition(":")
        if kind == "socket":
            yield inode.strip("[]")


def _listening(pid: int) -> Iterator[tuple[str, int]]:
    """Inode of each listening socket of its network, and its receive queue: connections to be accepted."""
    for table in _TABLES:
        if os.path.exists(path := f"/proc/{pid}/net/{table}"):
            with open(path) as lines:
                fields = [line.split() for line in lines]
            yield from ((row[9], int(row[4].partition(":")[2], 16)) for row in fields if row[3] == _LISTEN)
