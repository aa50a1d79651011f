"""Training that waits for cores that other processes use."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ....errors import SilentError
from ...figures import figure, pct
from ...measures.hosts import ALLOWED, CORES, Host, cores, hosts, others
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.15  # of the step: below that it may be the watching itself
_BUSY = 0.8  # of the host's cores: else the rank is kept from some by a limit of its own
_WORKERS = "SELECT MAX(num_workers) AS workers FROM python.dataloader_trace WHERE {window}"


def _find(watched: Watched) -> Iterator[Finding]:
    for host in hosts(watched):
        if host.waits >= LEAST and host.busy >= _BUSY:
            yield from _judged(watched, host)


def _judged(watched: Watched, host: Host) -> Iterator[Finding]:
    total = _total(watched, host)
    below, named = others(host) if host.pids else (0.0, [])
    used = host.busy * total
    part = max(0.0, used - host.cores - below) / used
    share = host.waits * part
    if share < LEAST:
        return
    rest = f"; {', '.join(named)}" if named else ""
    yield Finding(
        f"Host contention: {pct(share)} of each step waits for cores of {host.name} that other processes use.",
        host.ranks,
        why=[
            f"{figure(used)} of {total} cores are busy, {figure(host.cores + below)} with this job{rest}",
            f"with work to do, the training waits {pct(host.waits)} of the time for a core",
        ],
        remedy=f"fewer other processes on {host.name}, or cores of its own for the job (taskset, cpuset)",
        seconds=share * watched.step_s, share=share, confidence=host.sure(LEAST / part),
    )  # fmt: skip


def _total(watched: Watched, host: Host) -> int:
    """Its cores.  Raises SilentError where it is not known which of them the job itself uses."""
    if host.pids:
        return os.cpu_count() or 1
    (row,) = watched.rows(_WORKERS)
    known = None if row["workers"] else cores(watched)
    if known is None:
        raise SilentError(f"What the job's own processes use of {host.name} can be seen there only.", code="unseen")
    return known.total


HOST_CONTENTION: Rule[Watched] = Rule(
    "host-contention",
    "The training waits for cores that other processes use.",
    _find,
    needs=("host.process_trace", "python.step_trace", "python.dataloader_trace"),
    of=("communication-bound", "straggler", "gpu-idle"),
    sql=CORES,
    asks=(ALLOWED,),
)
