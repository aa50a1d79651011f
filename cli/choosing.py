"""Which processes a pid on the command line stands for: the ranks of one job.

Called by the verbs that attach, and by doctor.  Invariant: a pid with several jobs below it stands for none of them by
itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from probe.errors import EndpointError
from probe.text import grouped

if TYPE_CHECKING:
    from probe.host.processes import Process


def ranks_of(pids: Iterable[int], every_job: bool = False) -> dict[int, int | None]:
    """pid -> rank of the ranks at or below these processes.  every_job: a pid may stand for several jobs.

    A pid with no rank below it stands for itself: attaching to it tells why it cannot be a rank.  Raises EndpointError;
    on a terminal, the user is asked first whether all jobs below a pid are meant.
    """
    from probe.attach.refusals import check_process
    from probe.host import processes

    ranks: dict[int, int | None] = {}
    for pid in pids:
        found = processes.ranks_below(pid)
        if any(map(processes.is_launcher, found)):
            check_process(pid)
            raise EndpointError(f"The job of pid {pid} has no ranks yet.", "Try again in a moment.", code="no-ranks")
        if any(rank.rank is None for rank in found) and len(programs := _python_programs(pid)) > 1:
            names = ", ".join(map(str, programs))
            raise EndpointError(f"None of the programs below pid {pid} is a rank.", f"Give one: {names}.", "no-ranks")
        if not every_job:
            _check_is_one_job(pid, found)
        ranks |= {rank.pid: rank.rank for rank in found} or {pid: None}
    return ranks


def check_is_one_job(pid: int) -> None:
    """Raises EndpointError if several jobs run at or below this process, unless the user says that all are meant."""
    from probe.host.processes import ranks_below

    _check_is_one_job(pid, ranks_below(pid))


def _check_is_one_job(pid: int, ranks: Sequence[Process]) -> None:
    """Several jobs: two ranks have the same number, or none and are not spawned by one process."""
    if len({each.rank for each in ranks}) == len(ranks) or _are_spawned_by_one(ranks):
        return
    jobs = grouped((each.ppid if _has_peers(each) else each.pid, each) for each in ranks)
    names = "; ".join(f"{job} ({_what(each)})" for job, each in jobs.items())
    message = f"Below pid {pid} are {len(jobs)} jobs: {names}."
    if sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(f"{message} Attach to all of them?", err=True):
        return
    raise EndpointError(message, "Give one of them, or --all.", "several-jobs")


def _are_spawned_by_one(ranks: Sequence[Process]) -> bool:
    """As by mp.spawn, whose ranks get their numbers as an argument, which cannot be seen."""
    return len({each.ppid for each in ranks}) == 1 and all(each.is_spawned and each.rank is None for each in ranks)


def _has_peers(rank: Process) -> bool:
    return (rank.world_size or 1) > 1 or (rank.is_spawned and rank.rank is None)


def _what(ranks: Sequence[Process]) -> str:
    return f"{len(ranks)} ranks" if len(ranks) > 1 else f"pid {ranks[0].pid}"


def _python_programs(pid: int) -> list[int]:
    """The Python processes at or below pid that no other Python process among them started."""
    from probe.host import processes

    family = (each for each in processes.descendants(pid) if each != os.getpid())
    inside: set[int] = set()
    programs = []
    for process in filter(None, map(processes.process, family)):  # parents come before their children
        if process.ppid in inside or process.is_python:
            inside.add(process.pid)
            programs += [process.pid] if process.ppid not in inside else []
    return programs
