"""How much memory a host or a device has left.

Called by the rules on memory.  Invariant: what is unknown is None.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..watched import Watched

MB = 1 << 20
# What the container may use and what it does, in bytes as texts; without pages of files that nothing uses, which the
# kernel gives up before it ends a process.  [] outside of containers.
CONTAINER = (
    "[text for most in __import__('pathlib').Path('/sys/fs/cgroup').glob('memory.max') for text in (most.read_text(), "
    "str(int(most.with_name('memory.current').read_text()) - sum(int(line.split()[1]) for file in most.parent.glob("
    "'memory.stat') for line in file.read_text().splitlines() if line.startswith('inactive_file '))))]"
)
LIMITS = f"(__import__('os').sysconf('SC_PHYS_PAGES') * __import__('os').sysconf('SC_PAGE_SIZE'), {CONTAINER})"
HOST = (
    "SELECT host, MIN(rank) AS rank, ARG_MAX(host_memory_used_pct, start_ns) AS used_pct, MAX(host_memory_used_pct) AS "
    "most_pct FROM host.process_trace WHERE {window} GROUP BY host ORDER BY rank"
)
DEVICES = (
    "SELECT rank, device, ARG_MAX(memory_total_mb, start_ns) AS total_mb, ARG_MAX(memory_used_mb, start_ns) AS used_mb "
    "FROM host.gpu_trace WHERE {window} GROUP BY ALL"
)


@dataclass(frozen=True)
class Left:
    """mb: until the limit; limit_mb: in all; what: has the limit, in words."""

    mb: float
    limit_mb: float
    what: str


def left(watched: Watched, rank: int, device: str) -> Left | None:
    """Of the host of a rank, if device is `cpu`, or of its container; else of the device.

    Of hosts, that of the first rank alone is known: it is the one that is read.
    """
    if device != "cpu":
        return _of_device(watched, rank, device)
    hosts = {facts.rank or 0: facts.host for facts in watched.agents}
    is_first = not watched.agents or hosts.get(rank) == watched.agents[0].host
    return _of_host(watched) if is_first else None


def _of_device(watched: Watched, rank: int, device: str) -> Left | None:
    for row in watched.rows(DEVICES):
        if (row["rank"], row["device"]) == (rank, device) and row["total_mb"] and row["used_mb"] is not None:
            return Left(row["total_mb"] - row["used_mb"], row["total_mb"], device)
    return None


def least_of_devices(watched: Watched) -> float | None:
    """MB, of the device that has least left; None unless it is known of a device of each rank."""
    known = {
        (row["rank"], row["device"]): row["total_mb"] - row["used_mb"]
        for row in watched.rows(DEVICES)
        if row["total_mb"] and row["used_mb"] is not None
    }
    return min(known.values()) if {rank for rank, _ in known} >= {*watched.ranks} else None


def _of_host(watched: Watched) -> Left | None:
    """The nearer limit: of the first rank's host, or of its container."""
    hosts = watched.rows(HOST)
    try:
        total, texts = ast.literal_eval(watched.read(LIMITS) or "")
    except (SyntaxError, ValueError, TypeError):
        return None
    limits = []
    if hosts and hosts[0]["used_pct"] is not None:
        limits.append(Left(total * (1 - hosts[0]["used_pct"] / 100) / MB, total / MB, hosts[0]["host"]))
    if len(texts) == 2 and texts[0].strip() != "max":
        most, used = (int(text) / MB for text in texts)
        limits.append(Left(most - used, most, "its container"))
    return min(limits, key=lambda each: each.mb, default=None)
