"""The load of a job's hosts and devices, by the newest samples of its ranks, in lines.

Called by probe.diagnose.looks.  Invariant: pure, and a host that no rank has sampled is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..arrays.arrow import table_of
from ..derive.partition import Partition
from ..snapshot.snapshot import Snapshot
from ..snapshot.source import Rank, RankLeft
from ..tables.declaration import Table
from ..tables.gpu_trace import TABLE as GPU
from ..tables.process_trace import TABLE as PROCESS
from ..text import title


def machines_told(job: Snapshot) -> list[str]:
    """`host a: 37 % of its cores busy, 12 % of its memory used`, `devices 100 % busy on ranks 0-5, 0 % on rank 6`."""
    hosts: dict[str, str] = {}
    devices: dict[str, list[int]] = {}
    for raw in list(job.ranks):
        try:
            hosts.setdefault(raw.host, "")
            hosts[raw.host] = hosts[raw.host] or _host(raw)
            for busy in _devices(raw):
                devices.setdefault(busy, []).append(raw.rank)
        except RankLeft:
            continue
    told = [f"host {name}: {line}" for name, line in hosts.items() if line]
    busy = ", ".join(f"{how} on {title(sorted(set(ranks)))}" for how, ranks in devices.items())
    return [*told, f"devices {busy}"] if busy else told


def _host(raw: Rank) -> str:
    rows = _rows(raw, PROCESS, ("host_cpu_pct", "host_memory_used_pct"))
    last = rows[-1] if rows else {}
    parts = ((last.get("host_cpu_pct"), "cores busy"), (last.get("host_memory_used_pct"), "memory used"))
    return ", ".join(f"{value:.0f} % of its {what}" for value, what in parts if value is not None)


def _devices(raw: Rank) -> Iterator[str]:
    rows = _rows(raw, GPU, ("device", "start_ns", "gpu_util_pct"))
    for row in rows:
        if row["start_ns"] == rows[-1]["start_ns"] and row["gpu_util_pct"] is not None:
            yield f"{row['gpu_util_pct']:.0f} % busy"


def _rows(raw: Rank, table: Table, names: tuple[str, ...]) -> list[dict[str, Any]]:
    assert table.derive is not None  # of the two tables here
    columns = [column for column in table.columns if column.name in names]
    return list(table_of(columns, table.derive(Partition.of(raw))).to_pylist())
