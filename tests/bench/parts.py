"""A GROUP BY over many ranks on several hosts: rows fetched by the reader, and parts summed up by the hosts' servers.

    python tests/bench/parts.py [--hosts 4] [--ranks 16] [--rows 100000] [--rounds 3] [--parts-alone]

Simulated ranks, a process each, and a played host with a server of its own for so many of them; all share this machine
with the reader, which asks the servers at their ports.  Each round is a new reader; the first one of parts finds no
process that answers.  Ends with 1 where the two ways differ; with --parts-alone, for more rows than a reader has memory
for, where calls of modules are missing.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import page
from fan import HERE, SQL, played_hosts

from probe.client.endpoints import Address, Resolved
from probe.connection import Connection
from probe.query import hosts as of_query

BY_MODULE = "SELECT module, count(*) AS calls, SUM(duration) AS seconds FROM python.torch_trace GROUP BY ALL"
PATIENCE_S = 120.0  # all hosts share the cores of this one
WAYS = {"rows": 1 << 62, "parts": 0}  # worth it, in bytes


@contextmanager
def ranks_of_hosts(hosts: int, ranks: int, rows: int) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """(the number of the host, facts) of each rank."""
    processes = []
    ends_ns = str(time.monotonic_ns())
    with tempfile.TemporaryDirectory(prefix="parts-") as folder:
        try:
            for host in range(hosts):
                words = [folder, str(host * ranks), str(ranks), str(hosts * ranks), str(rows), ends_ns, f"host {host}"]
                command = [sys.executable, str(HERE / "ranks.py"), *words, "apart"]
                processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            yield [
                (host, json.loads(process.stdout.readline()))
                for host, process in enumerate(processes) if process.stdout is not None for _ in range(ranks)
            ]  # fmt: skip
        finally:
            for process in processes:
                process.communicate()  # all end with their input


def ask(endpoints: list[str], sql: str, way: str) -> dict[str, Any]:
    """By a new reader.  rows: by what is grouped by."""
    *servers, key = endpoints
    of_query.WORTH_BYTES = WAYS[way]
    with Connection(Resolved("parts", [Address(each) for each in servers]), PATIENCE_S, key) as job:
        begun = time.monotonic()
        result = job.query(sql, max_fetch=None)
        took = time.monotonic() - begun
    sent = sum(each.bytes for each in (*result.cost.fetches, *result.cost.hosts))
    assert bool(result.cost.hosts) == (way == "parts") != bool(result.cost.fetches)
    rows = {tuple(str(value) for value in row.values() if not isinstance(value, float)): row for row in result}
    return {"seconds": took, "bytes": sent, "rows": rows, "says": str(result.coverage)}


def is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """But for the last digits."""
    pairs = [(row["seconds"], other["rows"].get(key, {}).get("seconds", math.nan)) for key, row in one["rows"].items()]
    return len(one["rows"]) == len(other["rows"]) and all(math.isclose(*pair, rel_tol=1e-9) for pair in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=16, help="of each host")
    parser.add_argument("--rows", type=int, default=100_000, help="of python.torch_trace, on each rank")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts-alone", action="store_true")
    options = parser.parse_args()
    ways = ["parts"] if options.parts_alone else list(WAYS)
    lines, good = [], True
    with ranks_of_hosts(options.hosts, options.ranks, options.rows) as attached, played_hosts(attached) as endpoints:
        for what, sql in (("by rank and module", SQL), ("by module", BY_MODULE)):
            told = {way: [ask(endpoints, sql, way) for _ in range(options.rounds)] for way in ways}
            right = all(is_same(each, told[ways[0]][0]) for each in told["parts"])
            if sql is BY_MODULE:
                calls = sum(row["calls"] for row in told["parts"][0]["rows"].values())
                right &= calls == options.hosts * options.ranks * options.rows
            good &= right
            for way, all_told in told.items():
                times = [each["seconds"] for each in all_told]
                sent = f"{all_told[-1]['bytes'] / 1e6:,.3f}"
                lines.append(
                    [what, way, sent, f"{times[0]:.2f}", f"{median(times[1:] or times):.2f}", "yes" if right else "NO"]
                )
                print(what, way, sent, times, all_told[-1]["says"], file=sys.stderr)
    print(f"{options.hosts} hosts with {options.ranks} ranks of {options.rows:,} rows each, {options.rounds} readers\n")
    print(page.table(["", "way", "MB fetched", "first, s", "later, s", "equal"], lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
