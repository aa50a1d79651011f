"""Agents going into ranks and out again, each with its line: what attach, detach, run and demo have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from probe.errors import EndpointError, ProbeError, SilentError, UsageError

from .session import say

if TYPE_CHECKING:
    from probe.attach import Attached
    from probe.connection import Connection
    from probe.processes import Process

# Programs that start ranks: they import torch too, and before their ranks are there look like one.
LAUNCHER = re.compile(r"(\S+(\s-\S+)*\s)?(\S*/)?(torchrun|torch\.distributed\.(run|launch)|accelerate|deepspeed)(\s|$)")


def ranks_of(pids: Iterable[int]) -> dict[int, int | None]:
    """pid -> rank of the ranks at or below these processes.  Raises EndpointError.

    Where there is none the pid itself stands in: attaching to it tells why it cannot be one.
    """
    from probe import processes

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
    from probe import processes

    below = [process for each in processes.descendants(pid) if (process := processes.process(each)) is not None]
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


def attach_each(ranks: Mapping[int, int | None], timeout: float, tell: Callable[[str], object]) -> None:
    """Attach to each pid, `tell` a line for each that has its agent.

    A failure does not keep the others from being tried.  Raises the only failure as it is; of several
    ranks each failure has its line on stderr and the first one's code and exit status are raised.
    """
    from probe.attach import attach

    failures: list[ProbeError] = []
    for pid, rank in ranks.items():
        try:
            tell(line(attach(pid, timeout=timeout)))
        except ProbeError as error:
            if len(ranks) == 1:
                raise
            failures.append(error)
            say(f"failed    {who(rank, pid)}  [{error.code}] {error}")
    if failures:
        first = failures[0]
        raise type(first)(f"{len(failures)} of {len(ranks)} ranks could not be attached to.", code=first.code)


def detach_all(connection: Connection, tell: Callable[[str], object]) -> None:
    """Take every agent out, `tell` a line for each; what has to stay is said on stderr.

    Raises SilentError if one was not reached.
    """
    agents = list(connection.agents)
    left = connection.detach()
    for facts in agents:
        if facts["pid"] not in connection.unreached:
            tell(f"detached  {who(facts['rank'], facts['pid'])}")
    for what in left:
        say(what)
    if connection.unreached:
        raise SilentError(f"Still attached: {'; '.join(connection.unreached.values())}.", "Run detach again later.")


def line(attached: Attached) -> str:
    """`attached  rank 0  pid 4250  7 ms   python 3.11.7, torch 2.13.0`."""
    status = "already " if attached.already else "attached"
    took = "" if attached.already else f"{attached.milliseconds:.0f} ms"
    torch = f"torch {attached.torch.partition('+')[0]}" if attached.torch else "no torch: its tables stay empty"
    return f"{status}  {who(attached.rank, attached.pid)}  {took:<6} python {attached.python}, {torch}"


def who(rank: int | None, pid: int) -> str:
    return f"rank {rank or 0}  pid {pid}"


def pid_of(word: str) -> int:
    if not word.strip().isdigit() or not int(word):
        raise UsageError(f"{word!r} is no pid.", "Give the number of a process: probe list shows them.")
    return int(word)
