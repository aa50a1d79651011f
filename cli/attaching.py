"""Attaching to ranks one after another, each with its line: what attach, run and demo have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from probe.errors import ProbeError, UsageError

from .session import say

if TYPE_CHECKING:
    from probe.attach import Attached
    from probe.processes import Process


def ranks_of(pids: Iterable[int]) -> list[Process]:
    """The ranks below all these processes, each once.  Raises EndpointError."""
    from probe import processes

    return list({rank.pid: rank for pid in pids for rank in processes.ranks_below(pid)}.values())


def attach_each(ranks: Sequence[Process], timeout: float, tell: Callable[[str], object]) -> None:
    """Attach to each, `tell` a line for each that has its agent.

    A failure does not keep the others from being tried.  Raises the only failure as it is; of several
    ranks each failure has its line on stderr and the first one's code and exit status are raised.
    """
    from probe.attach import attach

    failures: list[tuple[Process, ProbeError]] = []
    for rank in ranks:
        try:
            tell(line(attach(rank.pid, timeout=timeout)))
        except ProbeError as error:
            if len(ranks) == 1:
                raise
            failures.append((rank, error))
            say(f"failed    {who(rank.rank, rank.pid)}  [{error.code}] {error}")
    if failures:
        first = failures[0][1]
        summary = type(first)(f"{len(failures)} of {len(ranks)} ranks could not be attached to.")
        summary.code = first.code
        raise summary


def line(attached: Attached) -> str:
    """`attached  rank 0  pid 4250  7 ms   python 3.11.7, torch 2.13.0`."""
    status = "already " if attached.already else "attached"
    took = "" if attached.already else f"{attached.milliseconds:.0f} ms"
    torch = f"torch {attached.torch.partition('+')[0]}" if attached.torch else "no torch: its tables stay empty"
    return f"{status}  {who(attached.rank, attached.pid)}  {took:<6} python {attached.python}, {torch}"


def who(rank: int | None, pid: int) -> str:
    return f"rank {rank or 0}  pid {pid}"


def pid_of(word: str) -> int:
    if not word.strip().isdigit():
        raise UsageError(f"{word!r} is no pid.", "Give the number of a process: probe list shows them.")
    return int(word)
