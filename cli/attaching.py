"""Agents going into ranks and out again, each with its line: what attach, detach, run and demo have in common."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probe.errors import EndpointError, ProbeError, SilentError, UsageError

from .session import say

if TYPE_CHECKING:
    from probe.attach import Attached
    from probe.attach.listening import Listen
    from probe.connection import Connection
    from probe.host.processes import Process

_LOOK_S = 0.5  # a look at the processes takes some milliseconds
# Programs that start ranks: they import torch too, and before their ranks are there look like one.
LAUNCHER = re.compile(r"(\S+(\s-\S+)*\s)?(\S*/)?(torchrun|torch\.distributed\.(run|launch)|accelerate|deepspeed)(\s|$)")


def ranks_of(pids: Iterable[int]) -> dict[int, int | None]:
    """pid -> rank of the ranks at or below these processes.  Raises EndpointError.

    Where there is none the pid itself stands in: attaching to it tells why it cannot be one.
    """
    from probe.host import processes

    ranks: dict[int, int | None] = {}
    for pid in pids:
        found = processes.ranks_below(pid)
        if any(map(is_launcher, found)):
            raise EndpointError(f"The job of pid {pid} has no ranks yet.", "Try again in a moment.", code="no-ranks")
        if any(rank.rank is None for rank in found) and len(programs := python_programs(pid)) > 1:
            names = ", ".join(map(str, programs))
            raise EndpointError(f"None of the programs below pid {pid} is a rank.", f"Give one: {names}.", "no-ranks")
        ranks |= {rank.pid: rank.rank for rank in found} or {pid: None}
    return ranks


def python_programs(pid: int) -> list[int]:
    """The Python processes at or below pid that no other of them has started."""
    from probe.host import processes

    family = (each for each in processes.descendants(pid) if each != os.getpid())
    below = [process for each in family if (process := processes.process(each)) is not None]
    inside: set[int] = set()
    programs = []
    for process in below:  # parents come before their children
        if process.ppid in inside or process.is_python:
            inside.add(process.pid)
            programs += [process.pid] if process.ppid not in inside else []
    return programs


def is_launcher(process: Process) -> bool:
    """Whether it starts ranks and is none."""
    return process.rank is None and bool(LAUNCHER.match(process.command))


@dataclass(frozen=True)
class Wanted:
    """What an attach is asked for.  timeout: seconds that each process may take; name: of the job, or ""; listen: where
    for other hosts, one port after the other for the processes of this one."""

    timeout: float = 10.0
    name: str = ""
    listen: Listen | None = None

    def attach(self, pid: int, place: int) -> Attached:
        from probe.attach import attach

        return attach(pid, self.timeout, self.name, self.listen.order(place) if self.listen else None)


def attach_each(ranks: Mapping[int, int | None], wanted: Wanted, tell: Callable[[str], object]) -> None:
    """Attach to each pid, `tell` a line for each that has its agent.

    A failure does not keep the others from being tried.  Raises the only failure as it is; of several
    ranks each failure has its line on stderr and the first one's code and exit status are raised.
    """
    failures = []
    for place, (pid, rank) in enumerate(ranks.items()):
        error = _attach_one(pid, rank, wanted, place, tell, alone=len(ranks) == 1)
        failures += [] if error is None else [error]
    _raise_first(failures, len(ranks))


def _raise_first(failures: Sequence[ProbeError], tried: int) -> None:
    if failures:
        first = failures[0]
        raise type(first)(f"{len(failures)} of {tried} ranks could not be attached to.", code=first.code)


def _attach_one(
    pid: int, rank: int | None, wanted: Wanted, place: int, tell: Callable[[str], object], alone: bool = False
) -> ProbeError | None:
    """The failure, said on stderr already; raised instead where it is the only process."""
    try:
        tell(line(wanted.attach(pid, place)))
    except ProbeError as error:
        if alone:
            raise
        say(f"failed    {who(rank, pid)}  [{error.code}] {error}")
        return error
    return None


def attach_as_they_come(pids: Sequence[int], wanted: Wanted, tell: Callable[[str], object]) -> None:
    """Attach to the ranks of these processes, and to those that come later, until all the processes have ended.

    A rank that could not be attached to has its line on stderr and is not tried again; at the end the first failure's
    code is raised.  Raises EndpointError if a process is not there at the beginning.
    """
    from probe.host.processes import program, start_ticks

    began = {pid: start_ticks(pid) for pid in pids}
    if gone := [pid for pid, ticks in began.items() if ticks is None]:
        raise EndpointError(f"There is no process {gone[0]}.", "Run: probe list")
    tried: dict[tuple[int, tuple[int, int] | None], int | None] = {}  # process and what it executes -> rank
    failures = []
    if not _ranks_now(pids):
        say("No rank is there yet: waiting for one.")
    while left := [pid for pid in pids if start_ticks(pid) == began[pid]]:
        for place, (pid, rank) in enumerate(_ranks_now(left).items()):
            process = pid, program(pid)
            if process in tried or (rank is None and any(each is not None for each in tried.values())):
                continue  # without its ranks a launcher looks like a job of its own
            tried[process] = rank
            error = _attach_one(pid, rank, wanted, place, tell)
            failures += [] if error is None else [error]
        time.sleep(_LOOK_S)
    _raise_first(failures, len(tried))


def _ranks_now(pids: Iterable[int]) -> dict[int, int | None]:
    """Those there are; a launcher between two rounds has none."""
    from probe.host.processes import ranks_below

    return {each.pid: each.rank for pid in pids for each in ranks_below(pid) if not is_launcher(each)}


def detach_all(connection: Connection, tell: Callable[[str], object]) -> None:
    """Take every agent out, `tell` a line for each; what has to stay is said on stderr.

    Raises SilentError if one was not reached.
    """
    agents = list(connection.agents)
    left = connection.detach()
    for facts in agents:
        if (facts["rank"] or 0) not in {each.rank for each in connection.unreached}:
            tell(f"detached  {who(facts['rank'], facts['pid'])}")
    for what in left:
        say(what)
    if connection.unreached:
        raise SilentError(
            f"Still attached: {'; '.join(each.why for each in connection.unreached)}.", "Run detach again later."
        )


def line(attached: Attached) -> str:
    """`attached  rank 0  pid 4250  7 ms   python 3.11.7, torch 2.13.0`."""
    status = "already " if attached.already else "attached"
    took = "" if attached.already else f"{attached.milliseconds:.0f} ms"
    torch = f"torch {attached.torch.partition('+')[0]}" if attached.torch else "no torch: its tables stay empty"
    listens = f", at {attached.tcp}" * bool(attached.tcp)
    return f"{status}  {who(attached.rank, attached.pid)}  {took:<6} python {attached.python}, {torch}{listens}"


def who(rank: int | None, pid: int) -> str:
    return f"rank {rank or 0}  pid {pid}"


def pid_of(word: str) -> int:
    if not word.strip().isdigit() or not int(word):
        raise UsageError(f"{word!r} is no pid.", "Give the number of a process: probe list shows them.")
    return int(word)
