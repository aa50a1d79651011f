"""The jobs that run on this machine: one launcher or process each, with its ranks.

Called by the verb list and by completion.  Invariant: nothing is stopped or changed, and nothing is asked of a job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from probe.text import grouped

if TYPE_CHECKING:
    from probe.host.facts import Facts
    from probe.host.processes import Process

# Before a script; before -m and -c it stays.
_INTERPRETER = re.compile(r"\S*python[\d.]*\s+(-[XW]\s+\S+\s+|-(?![cm]\s)\w+\s+)*(?=[^-\s])")


@dataclass(frozen=True)
class Listed:
    """One process, with what its agent says, if it has one; job: the pid that stands for it and its peers."""

    process: Process
    job: int
    facts: Facts | None = None

    @property
    def rank(self) -> int | None:
        return self.process.rank if self.facts is None or self.facts.rank is None else self.facts.rank


@dataclass(frozen=True)
class Job:
    """pid: what one attaches to; processes: the launcher, if it is Python, and its ranks, or one process alone."""

    pid: int
    processes: Sequence[Listed]

    @property
    def has_torch(self) -> bool:
        """Whether it can be attached to with a use: torch is loaded, or an agent is there."""
        return any(each.process.has_torch or each.facts for each in self.processes)

    @cached_property
    def ranks(self) -> Sequence[Listed]:
        """All but the launcher."""
        return [each for each in self.processes if each.process.pid != self.pid] or self.processes

    @property
    def attached(self) -> Sequence[Facts]:
        return [each.facts for each in self.ranks if each.facts is not None]

    @property
    def command(self) -> str:
        """Of the first rank, or of what has spawned it."""
        named = next((each for each in self.ranks if not each.process.is_spawned), self.processes[0])
        return named.process.command

    @property
    def shortened(self) -> str:
        """`train.py --lr 0.1` of `/usr/bin/python3 -u /home/me/train.py --lr 0.1`."""
        program, space, rest = _INTERPRETER.sub("", self.command, count=1).partition(" ")
        return f"{program.rpartition('/')[2]}{space}{rest}"


def running(below: int | None = None, skipped: list[str] | None = None) -> list[Job]:
    """The jobs with torch, then other Python processes, by pid; those at or below a process, or all that one may see.

    skipped: gets a line about each process that only looks as if it had an agent.  It takes some milliseconds.
    """
    from probe.client import endpoints
    from probe.host import processes

    inside = None if below is None else set(processes.descendants(below))
    ours = {os.getpid(), *servers(), *_beside_servers()}
    found = [p for p in processes.python_processes() if p.pid not in ours and (inside is None or p.pid in inside)]
    return jobs_of(found, {each.pid: each.facts for job in endpoints.jobs(skipped) for each in job.addresses})


def servers() -> Mapping[int, str]:
    """pid -> endpoint of each server beside a job."""
    from probe.host.processes import with_argument
    from probe.serve.handover import SERVER_MODULE

    return with_argument(SERVER_MODULE)


def _beside_servers() -> Iterable[int]:
    from probe.host.processes import with_argument
    from probe.serve.handover import ANSWERS_MODULE, KEEPER_MODULE

    return [pid for module in (KEEPER_MODULE, ANSWERS_MODULE) for pid in with_argument(module)]


def jobs_of(found: Iterable[Process], attached: Mapping[int, Facts]) -> list[Job]:
    """The jobs of these processes, without workers of ranks.  attached: pid -> facts of its agent."""
    python = {process.pid: process for process in found}
    listed = [
        Listed(each, _job(each, python.get(each.ppid)), attached.get(each.pid))
        for each in python.values()
        if each.pid in attached or not _is_worker(each, python.get(each.ppid), attached)
    ]
    jobs = [
        job for pid, members in grouped((each.job, each) for each in listed).items() for job in _apart(pid, members)
    ]
    return sorted(jobs, key=lambda job: (not job.has_torch, job.pid))


def _job(process: Process, parent: Process | None) -> int:
    """The launcher of a rank; any other process stands for itself."""
    has_peers = (process.world_size or 1) > 1 and process.ppid > 1
    is_rank = process.rank is not None and (parent is not None or has_peers)
    return process.ppid if is_rank or (process.is_spawned and parent is not None) else process.pid


def _is_worker(process: Process, parent: Process | None, attached: Container[int]) -> bool:
    """A loader's worker and the like: a fork, what multiprocessing starts for itself, what has inherited its RANK."""
    from probe.host.processes import is_worker

    if is_worker(process) or parent is None:
        return is_worker(process)
    inherits = process.rank is not None and (process.rank, process.launched_by) == (parent.rank, parent.launched_by)
    # A spawned rank and a spawned worker look alike; but whoever has been attached to is a rank, and has no ranks.
    helps = not process.has_torch or parent.pid in attached
    return inherits or process.command == parent.command or ("from multiprocessing" in process.command and helps)


def _apart(pid: int, members: Sequence[Listed]) -> list[Job]:
    """One job, or one for each process where two have the same rank: a shell has started several jobs."""
    numbers = [each.rank for each in members if each.process.pid != pid and each.rank is not None]
    if len(set(numbers)) == len(numbers):
        return [Job(pid, sorted(members, key=lambda each: (-1 if each.rank is None else each.rank, each.process.pid)))]
    return [Job(each.process.pid, [each]) for each in members]
