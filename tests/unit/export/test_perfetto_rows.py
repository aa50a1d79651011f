"""Which rows a trace for Perfetto draws, of tables as recorders leave them."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from recorded import plant

import probe
from probe.export.perfetto_rows import KINDS

BEGAN = datetime(2026, 11, 1, 12, 0, 0)
(COLLECTIVES,) = (kind for kind in KINDS if kind.name == "collectives")
STARTS = (0, 20, 40)  # s, of the agents


def record(folder: Path, start_s: int, alone: bool) -> None:
    """Three operations of two ranks, of an agent that has just come; alone: the ranks do not meet in the last one."""
    times = [BEGAN + timedelta(seconds=start_s + number) for number in range(3)]
    for rank in (0, 1):
        plant(folder, "python.nccl_trace", [
            {"step": 1, "seq": seq, "time": time + timedelta(milliseconds=5 * rank), "operation_type": "all_reduce"}
            for seq, time in enumerate(times, 1)
        ], rank)  # fmt: skip
    plant(folder, "probe.collectives", [
        {"step": 1, "group_ranks": [0, 1], "seqs": [seq, seq], "arrived": [0, 1], "first_time": time,
         "last_time": time + timedelta(milliseconds=5)}
        for seq, time in enumerate(times[:-1] if alone else times, 1)
    ], None)  # fmt: skip


def test_operations_of_agents_that_count_alike_are_drawn_once_and_not_joined(tmp_path: Path) -> None:
    for start_s in STARTS:
        record(tmp_path, start_s, alone=start_s == STARTS[-1])
    with probe.connect(str(tmp_path)) as recording:
        rows = recording.query(COLLECTIVES.query(None)).to_pylist()
    assert len(rows) == 2 * 3 * len(STARTS)
    times = {row["time"].replace(microsecond=0): set[int | None]() for row in rows}
    for row in rows:
        times[row["time"].replace(microsecond=0)].add(row["flow"])
    assert all(len(flows) == 1 for flows in times.values())
    flows = [flow for each in times.values() for flow in each if flow is not None]
    assert len(flows) == len(set(flows)) == len(times) - 1
