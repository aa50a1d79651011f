"""A query over hundreds of ranks from one reader: how long it takes, and what it says when some of them are killed.

    python tests/bench/fan.py [--ranks 512] [--rows 2000] [--rounds 5] [--hosts] [--profile]

Simulated ranks, 64 to a process, share the machine with the reader.  With --hosts, each process is a host with a server
of its own, which the reader asks at its port (tcp://).  Each round is a new reader: its time is that of
connecting and of the first query, imports not counted.  Then the ranks of one process are killed: before a reader
connects, and between connecting and asking.  Ends with 1 where an answer is wrong.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import page
from ranks import ROWS_A_STEP

from probe import keys

HERE = Path(__file__).resolve().parent
SQL = "SELECT rank, module, SUM(duration) AS seconds FROM python.torch_trace GROUP BY ALL"
A_PROCESS = 64
MODULES = 3  # of python.torch_trace: a model, the layer in it, its optimizer
TIMEOUT_S = 10.0


@contextmanager
def simulated(
    ranks: int, rows: int, hosts: bool
) -> Iterator[tuple[list[subprocess.Popen[str]], list[tuple[int, dict[str, Any]]]]]:
    """The processes, and (pid, facts) of each rank."""
    processes: list[subprocess.Popen[str]] = []
    ends_ns = time.monotonic_ns()
    with tempfile.TemporaryDirectory(prefix="fan-") as folder:
        try:
            for first in range(0, ranks, A_PROCESS):
                words = [folder, str(first), str(min(A_PROCESS, ranks - first)), str(ranks), str(rows), str(ends_ns)]
                words += [f"host {first}"] if hosts else []
                command = [sys.executable, str(HERE / "ranks.py"), *words]
                processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            attached = []
            for process in processes:
                assert process.stdout is not None
                attached += [(process.pid, json.loads(process.stdout.readline())) for _ in range(A_PROCESS)][:ranks]
            yield processes, attached
        finally:
            for process in processes:
                process.kill()
                process.wait()


@contextmanager
def played_hosts(attached: list[tuple[int, dict[str, Any]]]) -> Iterator[list[str]]:
    """The endpoints of their servers, and the key file at the end."""
    servers: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="fan-") as folder:
        key = str(Path(folder, "key"))
        keys.create(key)
        try:
            endpoints = []
            for pid in dict.fromkeys(pid for pid, _ in attached):
                host = Path(folder, str(pid))
                host.mkdir()
                command = [sys.executable, str(HERE / "played_host.py"), str(host), key]
                servers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
                assert servers[-1].stdin is not None and servers[-1].stdout is not None
                print(json.dumps([said for each, said in attached if each == pid]), file=servers[-1].stdin, flush=True)
                endpoints.append(f"tcp://127.0.0.1:{int(servers[-1].stdout.readline())}")
            yield [*endpoints, key]
        finally:
            for server in servers:
                server.kill()
                server.wait()


def reader(attached: str, kill: int, profiled: bool) -> dict[str, Any]:
    """One reader: what it saw and how long it took.  kill: a process to be killed once it has connected."""
    from probe import tables  # noqa: F401  imports are not measured
    from probe.client.endpoints import Address, Resolved
    from probe.connection import Connection
    from probe.host.facts import Facts
    from probe.query import database as of_database

    now = time.monotonic_ns()  # as an endpoint's facts are read when it is resolved
    given = json.loads(Path(attached).read_text())
    known, key = [], None
    if isinstance(given[0], str):
        *endpoints, key = given
        known = [Address(endpoint) for endpoint in endpoints]
    else:
        known = [Address(said["endpoint"], pid, Facts.parse({**said, "monotonic_ns": now})) for pid, said in given]
    profile = cProfile.Profile(time.process_time)
    if profiled:
        of_database.interruptibly = lambda call, *_: call()  # on this thread, which is the one that is profiled
        profile.enable()
    begun = time.monotonic()
    with Connection(Resolved("fan", known), TIMEOUT_S, key) as connection:
        connected = time.monotonic()
        if kill:
            os.kill(kill, 9)
        first = connection.query(SQL)
        done = time.monotonic()
        again = connection.query(SQL)
        end = time.monotonic()
        profile.disable()
        if profiled:
            pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(60)
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)
        return {
            "connect_s": connected - begun, "query_s": done - connected, "again_s": end - done,
            "rows": first.num_rows, "ranks": len(set(first.column("rank").to_pylist())), "again": again.num_rows,
            "answered": str(first.coverage), "notes": [note.text for note in first.notes],
            "seconds": sum(first.column("seconds").to_pylist()),
        }  # fmt: skip


def read(attached: list[Any], kill: int = 0, profiled: bool = False) -> dict[str, Any]:
    """The same in a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(attached, file)
        file.flush()
        words = ["--reader", file.name, "--kill", str(kill), *(["--profile"] if profiled else [])]
        told = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE).stdout
    return dict(json.loads(told))


def is_right(told: dict[str, Any], ranks: int, rows: int) -> bool:
    """Every rank that is left, each with the time that its rows were made with."""
    seconds = 0.8e-3 * (rows // ROWS_A_STEP) * ranks  # forward 300, backward 400 with what is around it, step 100
    return told["ranks"] == ranks and told["rows"] == MODULES * ranks and abs(told["seconds"] / seconds - 1) < 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--rows", type=int, default=2000, help="of python.torch_trace, on each rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", action="store_true", help="ask servers at ports")
    parser.add_argument("--profile", action="store_true", help="of one reader, on stderr")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    parser.add_argument("--kill", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        print(json.dumps(reader(options.reader, options.kill, options.profile)))
        return 0
    load = os.getloadavg()[0]
    lines, good = [], True

    def line(name: str, told: list[dict[str, Any]], ranks: int) -> None:
        nonlocal good
        right = all(is_right(each, ranks, options.rows) for each in told)
        good &= right
        times = [f"{median(each[key] for each in told):.2f}" for key in ("connect_s", "query_s", "again_s")]
        whole = [each["connect_s"] + each["query_s"] for each in told]
        spread = f"{median(whole):.2f} ({min(whole):.2f} to {max(whole):.2f})"
        lines.append([name, *times, spread, "yes" if right else "NO", told[-1]["answered"].partition(" in ")[0]])
        print(f"{name}: {told[-1]['answered']}; {told[-1]['rows']} rows", file=sys.stderr)

    with ExitStack() as stack:
        processes, attached = stack.enter_context(simulated(options.ranks, options.rows, options.hosts))
        if options.hosts:
            attached = stack.enter_context(played_hosts(attached))
        if options.profile:
            read(attached, profiled=True)
            return 0
        line("all there", [read(attached) for _ in range(options.rounds)], options.ranks)
        left = options.ranks - min(A_PROCESS, options.ranks)
        if left:
            line(f"{options.ranks - left} killed once connected", [read(attached, kill=processes[-1].pid)], left)
            line(f"{options.ranks - left} killed before", [read(attached)], left)
    header = ["", "connect, s", "first query, s", "again, s", "connect and first query, s", "right", "says"]
    print(f"{options.ranks} ranks with {options.rows} rows each, {A_PROCESS} to a process; {options.rounds} readers; "
          f"load at the beginning {load:.1f}\n")  # fmt: skip
    print(page.table(header, lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
