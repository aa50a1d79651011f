"""Hosts and devices whose memory is nearly used up."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import figure, pct
from ...measures.memory_left import DEVICES, HOST
from ...rule import Finding, Rule
from ...watched import Watched

_HOST, _DEVICE = 95.0, 97.0  # %: torch itself keeps much of a device; of a host the rest is what files need
_PEAKS = (
    "SELECT rank, device, MAX(peak_mb) AS peak_mb FROM python.memory_trace WHERE {window} AND device <> 'cpu' "
    "GROUP BY ALL"
)


def _find(watched: Watched) -> Iterator[Finding]:
    yield from _hosts(watched)
    yield from _devices(watched)


def _hosts(watched: Watched) -> Iterator[Finding]:
    for row in watched.rows(HOST):
        if (row["most_pct"] or 0.0) >= _HOST:
            yield Finding(
                f"Memory near its limit: {pct(row['most_pct'] / 100)} of the memory of {row['host']} is used.",
                remedy="fewer workers or smaller caches on this host; at its limit the kernel ends a process",
                severity="warning",
            )


def _devices(watched: Watched) -> Iterator[Finding]:
    """By what tensors have needed at once, not by what torch keeps for later."""
    peaks = {(row["rank"], row["device"]): row["peak_mb"] for row in watched.rows(_PEAKS)}
    for row in watched.rows(DEVICES):
        peak = peaks.get((row["rank"], row["device"]))
        if peak and row["total_mb"] and 100 * peak / row["total_mb"] >= _DEVICE:
            yield Finding(
                f"Memory near its limit: tensors of rank {row['rank']} needed {pct(peak / row['total_mb'])} of "
                f"{row['device']} at once.",
                (row["rank"],),
                why=[f"{figure(peak)} of {figure(row['total_mb'])} MB"],
                remedy="a smaller batch, or activation checkpointing",
                severity="hint",
            )


MEMORY_NEAR_LIMIT: Rule[Watched] = Rule(
    "memory-near-limit",
    "The memory of a host or a device is nearly used up.",
    _find,
    needs=("host.process_trace", "host.gpu_trace", "python.memory_trace"),
    sql=HOST,
)
