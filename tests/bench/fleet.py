"""GROUP BY, JOIN and a window over a large recording: DuckDB on this machine, and Daft on a Ray of two workers.

.venv_fleet/bin/python tests/bench/fleet.py [--rows 20000000] [--folder DIR] [--only duckdb|daft]

Rows of python.torch_trace of 8 ranks, some 25 bytes each on disk, are written once into DIR, a temporary folder else.
Each query runs twice; the second time is told, with the peak memory of this process (DuckDB) or of all of Ray's.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
from recorded import NAMES, folder_of

import probe
from probe.record.fleet.fleet import Fleet, on_ray
from probe.record.stored import About, stored_schema, write
from probe.tables import TABLES

RANKS, A_FILE, CALLS = 8, 2_500_000, 50  # calls of a step
TABLE = next(each for each in TABLES if each.name == "python.torch_trace")
QUERIES = {
    "group": "SELECT rank, module, stage, COUNT(*) AS n, AVG(duration) AS mean, MAX(duration) AS longest "
    "FROM python.torch_trace GROUP BY ALL",
    "join": "SELECT t.rank, COUNT(*) AS n, SUM(t.duration) AS s FROM python.torch_trace t JOIN (SELECT step, "
    "MAX(duration) AS longest FROM python.torch_trace WHERE stage = 'backward' GROUP BY step) m ON t.step = m.step "
    "WHERE t.duration * 2 > m.longest GROUP BY t.rank",
    "window": "SELECT rank, COUNT(*) AS n, AVG(d) AS mean FROM (SELECT rank, duration - LAG(duration) OVER "
    "(PARTITION BY rank, module, stage ORDER BY start_ns) AS d FROM python.torch_trace) WHERE d > 0 GROUP BY rank",
}


def written(folder: Path, rows: int) -> None:
    schema, chance = stored_schema(TABLE), np.random.default_rng(1)
    for rank in range(RANKS):
        for first in range(0, rows // RANKS, A_FILE):
            count = min(A_FILE, rows // RANKS - first)
            path = folder_of(folder, TABLE.name, rank) / NAMES.next("m5")
            path.parent.mkdir(parents=True, exist_ok=True)
            parts = range(first, first + count, 1 << 17)
            ends = [min(part + (1 << 17), first + count) for part in parts]
            write(path, schema, (_rows(schema, a, b, chance) for a, b in zip(parts, ends, strict=True)), About())


def _rows(schema: Any, first: int, end: int, chance: Any) -> Any:
    number = np.arange(first, end)
    modules = np.array([f"block{place // 2}.{'attention' if place % 2 else 'mlp'}" for place in range(CALLS // 2)])
    durations = chance.exponential(1e-3, len(number))
    known = {
        "step": number // CALLS, "start_ns": number * 20_000, "seq": number, "duration": durations,
        "module": modules[number % (CALLS // 2)], "stage": np.where(number % CALLS < CALLS // 2, "forward", "backward"),
    }  # fmt: skip
    return pa.table([pa.array(known[each.name], each.type) if each.name in known else pa.nulls(len(number), each.type)
                     for each in schema], schema=schema)  # fmt: skip


def told(table: Any) -> list[str]:
    rounded = [[f"{v:.9g}" if isinstance(v, float) else str(v) for v in row.values()] for row in table.to_pylist()]
    return sorted(map(repr, rounded))


class Peak:
    """The most memory that these processes had together, in GB: private pages and their share of the others'."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids, self._ended, self.gb = pids, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self.gb = max(self.gb, sum(map(pss, self._pids())) / 1e6)


def pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def below(root: int) -> list[int]:
    """This process and all below it."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def measured(query: Callable[[str], Any]) -> dict[str, list[str]]:
    answers = {}
    for name, sql in QUERIES.items():
        query(sql)
        with Peak(lambda: below(os.getpid())) as peak:
            begun = time.monotonic()
            answers[name] = told(query(sql))
            seconds = time.monotonic() - begun
        print(f"  {name:<7} {seconds:7.2f} s   peak {peak.gb:5.2f} GB   {len(answers[name])} rows", flush=True)
    return answers


@contextmanager
def two_workers() -> Iterator[str]:
    """A Ray of two nodes with a processor each; its address."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def run(folder: Path, rows: int, only: str) -> None:
    if not list(folder.glob("job=*")):
        written(folder, rows)
    size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    print(f"{rows:,} rows, {size / 1e9:.2f} GB", flush=True)
    answers = []
    if only != "daft":
        print("DuckDB", flush=True)
        with probe.connect(str(folder)) as recording:
            answers.append(measured(lambda sql: recording.query(sql).table))
    if only != "duckdb":
        print("Daft, two workers", flush=True)
        with two_workers() as address, on_ray(address):
            answers.append(measured(Fleet(str(folder)).query))
    if len(answers) == 2:
        print("equal" if answers[0] == answers[1] else "NOT EQUAL")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", choices=["duckdb", "daft"], default="")
    arguments = parser.parse_args()
    if arguments.folder:
        run(arguments.folder, arguments.rows, arguments.only)
        return
    with tempfile.TemporaryDirectory() as name:
        run(Path(name), arguments.rows, arguments.only)


if __name__ == "__main__":
    main()
