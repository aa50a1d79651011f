"""What the ranks of each host got of its cores while the job was watched, and who used the rest.

Called by the rules on machines.  Invariant: a host is judged once, over all its ranks; what is unknown is None.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

from ...errors import SilentError
from ...host.agent_memory import here
from ...host.processes import trees
from ...host.processor_use import cores_used, program_of
from ...text import grouped
from ..ratio import sure_above
from ..watched import Watched

LEAST_SECONDS = 8  # fewer samples do not show what is usual
CORES = (
    "SELECT host, rank, COUNT(*) AS seconds, AVG(LEAST(core_wait_pct, 100)) / 100 AS waits, "
    "COALESCE(STDDEV_SAMP(core_wait_pct), 0) / 100 AS spread, AVG(cpu_pct) / 100 AS cores, AVG(host_cpu_pct) / 100 AS "
    "busy, AVG(context_switches_s) AS switches_s FROM host.process_trace WHERE {window} AND core_wait_pct IS NOT NULL "
    "AND cpu_pct IS NOT NULL AND host_cpu_pct IS NOT NULL GROUP BY ALL ORDER BY rank"
)
ALLOWED = (
    "(__import__('os').cpu_count(), len(__import__('os').sched_getaffinity(0)), __import__('torch').get_num_threads(), "
    "[file.read_text() for file in __import__('pathlib').Path('/sys/fs/cgroup').glob('cpu.max')])"
)
_LOOK_S = 0.5
_MUCH = 0.05  # of a core: processes that use less are not named
_NAMED = 3
_FEW = 0.25  # of the processor time
_SWITCHES_S = 2000  # per second of processor time: threads that wait for each other at the end of each operation


@dataclass(frozen=True)
class Cores:
    """Of a rank's host: how many there are, how many the rank may run on, how many its container gets the time of, how
    many threads it computes with."""

    total: int
    allowed: int
    quota: float
    threads: int

    @property
    def usable(self) -> float:
        """By that rank."""
        return min(self.allowed, self.quota)

    def shared(self, ranks: int, pids: Collection[int]) -> float | None:
        """By so many ranks of the host together; None where each may have cores of its own.

        pids: of those that run on this host.
        """
        told = self.allowed if ranks == 1 or self.allowed == self.total else None
        allowed = _allowed(pids) if len(pids) == ranks else told
        return None if allowed is None else min(allowed, self.quota)


@dataclass(frozen=True)
class Host:
    """waits: share of the time, 0 to 1, in which the main threads of its ranks had work and no core; error: of it;
    cores: used by all threads of the ranks; busy: share of the host's cores; pids: of its ranks, if it is this one."""

    name: str
    ranks: tuple[int, ...]
    waits: float
    error: float
    cores: float
    busy: float
    switches_s: float
    pids: tuple[int, ...]

    def sure(self, threshold: float) -> float:
        return sure_above(self.waits, self.error, threshold)

    @property
    def threads_compete(self) -> bool:
        """Whether other threads of the ranks than the main ones run, or wait for each other."""
        others = self.cores - len(self.ranks) * (1 - self.waits)  # at least: a main thread may be blocked, too
        return others > _FEW * self.cores or self.switches_s > _SWITCHES_S * self.cores


def hosts(watched: Watched) -> Iterator[Host]:
    """Raises SilentError if too few samples were taken."""
    rows = [row for row in watched.rows(CORES) if row["seconds"] >= LEAST_SECONDS]
    if not rows:
        raise SilentError(f"Fewer than {LEAST_SECONDS} seconds tell who had the cores.", code="few-steps")
    pids = {facts.rank or 0: here(facts) for facts in watched.agents}
    for name, ranks in grouped((row["host"], row) for row in rows).items():
        yield _host(name, ranks, [pid for row in ranks if (pid := pids.get(row["rank"])) is not None])


def _host(name: str, ranks: list[dict[str, Any]], pids: list[int]) -> Host:
    def mean(column: str) -> float:
        return float(sum(row[column] for row in ranks) / len(ranks))

    # One second is much like the next: half of them count.
    error = mean("spread") / sqrt(sum(row["seconds"] for row in ranks) / len(ranks) / 2)
    count = len(ranks)
    return Host(
        name, tuple(row["rank"] for row in ranks), mean("waits"), error, mean("cores") * count, mean("busy"),
        mean("switches_s") * count, tuple(pids) if len(pids) == count else (),
    )  # fmt: skip


def cores(watched: Watched) -> Cores | None:
    """Of the first rank's host, as the job sees it; None if it cannot be asked."""
    try:
        total, allowed, threads, quotas = ast.literal_eval(watched.read(ALLOWED) or "")
    except (SyntaxError, ValueError, TypeError):
        return None
    words = quotas[0].split() if quotas else ["max"]
    quota = float("inf") if words[0] == "max" else int(words[0]) / int(words[1])
    return Cores(total, allowed, quota, threads)


def _allowed(pids: Collection[int]) -> int | None:
    """On how many cores any of these processes may run; None if one has ended."""
    try:
        return len(set().union(*map(os.sched_getaffinity, pids)))
    except OSError:
        return None


def others(host: Host) -> tuple[float, list[str]]:
    """Of this host: cores used by what the ranks have started, such as workers; what else runs, in words."""
    used, below = cores_used(_LOOK_S), trees(host.pids)
    own = {pid for tree in below.values() for pid in tree}
    most = sorted((pid for pid in used if pid not in {*own, os.getpid()}), key=lambda pid: -used[pid])[:_NAMED]
    named = [f"{used[pid]:.1f} by {program_of(pid)} ({pid})" for pid in most if used[pid] > _MUCH]
    return sum(used.get(pid, 0.0) for pid in own - set(host.pids)), named
