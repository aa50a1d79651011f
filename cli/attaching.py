"""Puts agents into ranks and takes them out, one line each: what attach, detach, run and demo have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from probe.errors import DetachError, EndpointError, ProbeError, SilentError, UsageError
from probe.text import title

from .program import VERBS
from .session import say

if TYPE_CHECKING:
    from probe.attach import Attached
    from probe.attach.listening import Listen
    from probe.connection import Connection
    from probe.host.facts import Facts

# Taps that may be off because devices are left alone, and what the job then lacks.
_ON_DEVICES = {"device": "device times and memory", "collectives": "collectives and the Flight Recorder"}
_POLL_S = 0.5  # a look at the processes takes some milliseconds


@dataclass(frozen=True)
class Wanted:
    """What to attach, and how to report it.

    timeout: seconds per process; name: of the job, or ""; listen: where its server listens for other hosts; server:
    whether it gets one; devices: whether to record on them; tell: gets each rank that has its agent.
    """

    timeout: float = 10.0
    name: str = ""
    listen: Listen | None = None
    server: bool = True
    devices: bool = True
    tell: Callable[[Attached], object] = lambda attached: click.echo(line(attached))


def attach_each(ranks: Mapping[int, int | None], wanted: Wanted) -> None:
    """Attach to each of these pids.

    One failure does not keep the others from being tried.  The failure of a single pid is raised as it is; of several
    pids, each failure is a line on stderr, and an error with the code and exit status of the first is raised.
    """
    failures = _attach_all(ranks.items(), wanted, set(), stop_at_failure=len(ranks) == 1)
    _raise_first(list(failures.values()), len(ranks))


def _attach_all(
    ranks: Iterable[tuple[int, int | None]], wanted: Wanted, said: set[str], stop_at_failure: bool = False
) -> dict[int, ProbeError]:
    """Attach to each (pid, rank); the failures by pid, each of which is a line on stderr unless it was said before."""
    from probe.attach import attach
    from probe.serve.jobs import JobServers

    servers = JobServers(wanted.listen.order() if wanted.listen else None, wanted.server)
    attached: list[Attached] = []
    failures: dict[int, ProbeError] = {}
    for pid, rank in ranks:
        try:
            with servers.of(pid) as served:
                attached.append(attach(pid, wanted.timeout, wanted.name, served, wanted.devices))
            wanted.tell(attached[-1])
        except ProbeError as error:
            if stop_at_failure:
                raise
            failures[pid] = error
            told = f"failed    {who(rank, pid)}  [{error.code}] {error}"
            if told not in said:
                say(told)
            said.add(told)
    _say_left_alone(attached)
    if servers.why_none:
        say(f"No server beside the job: {servers.why_none}. Commands ask its agents themselves.")
    return failures


def _say_left_alone(attached: Iterable[Attached]) -> None:
    """Say on stderr what is off because devices are left alone: one line for all ranks that lack the same."""
    from probe.protocol import LEFT_ALONE

    lacking: dict[tuple[str, str], list[int]] = {}
    for each in attached:
        off = {name: each.taps[name] for name in _ON_DEVICES if each.taps.get(name, "").endswith(LEFT_ALONE)}
        if off:
            what = ", ".join(_ON_DEVICES[name] for name in off)
            why = next(iter(off.values())).removeprefix("off: ")
            lacking.setdefault((what, why), []).append(each.rank or 0)
    for (what, why), ranks in lacking.items():
        say(f"{title(sorted(ranks))}: {what} are off: {why}")


def attach_as_they_come(pids: Sequence[int], wanted: Wanted, needs_torch: bool = False) -> None:
    """Attach to the ranks of these processes, and to those that appear later, until all the processes have ended.

    needs_torch: leave a rank alone until it has loaded torch, which takes seconds after its start.  A rank that could
    not be attached to has its line on stderr, and is tried again if it executes another program, or as long as its port
    is in use: the server of the ranks before a restart ends a second after them.  At the end an error with the first
    failure's code is raised.  Raises EndpointError if a process does not exist at the beginning.
    """
    from probe.host.processes import program, start_ticks

    began = {pid: start_ticks(pid) for pid in pids}
    if gone := [pid for pid, ticks in began.items() if ticks is None]:
        raise EndpointError(f"There is no process {gone[0]}.", "Run: probe list")
    tried: dict[tuple[int, tuple[int, int] | None], int | None] = {}  # process and its program -> rank
    failures: list[ProbeError] = []
    without_port: dict[int, ProbeError] = {}  # by pid
    said: set[str] = set()

    def new_ranks() -> Iterator[tuple[int, int | None]]:
        for pid, rank in _ranks_now(left, needs_torch).items():
            process = pid, program(pid)
            # A launcher whose ranks are gone looks like a job of its own.
            is_new = process not in tried and (rank is not None or all(each is None for each in tried.values()))
            if without_port.pop(pid, None) or is_new:
                tried[process] = rank
                yield pid, rank

    if not needs_torch and not _ranks_now(pids, needs_torch):
        say("No rank has started yet: waiting for one.")
    while left := [pid for pid in pids if start_ticks(pid) == began[pid]]:
        for pid, error in _attach_all(new_ranks(), wanted, said).items():
            if error.code == "port-in-use":
                without_port[pid] = error
            else:
                failures.append(error)
        time.sleep(_POLL_S)
    if not tried:
        which = "Python process with torch" if needs_torch else "rank"
        say(f"Nothing was attached to: no {which} was seen. While a job runs, this shows its pid: probe list")
    _raise_first([*failures, *without_port.values()], len(tried))


def _ranks_now(pids: Iterable[int], needs_torch: bool) -> dict[int, int | None]:
    """pid -> rank of the ranks that are running; a launcher between two rounds has none."""
    from probe.host.processes import is_launcher, ranks_below

    ranks = (each for pid in pids for each in ranks_below(pid) if not is_launcher(each))
    return {each.pid: each.rank for each in ranks if each.has_torch or not needs_torch}


def _raise_first(failures: Sequence[ProbeError], tried: int) -> None:
    if failures:
        first = failures[0]
        raise type(first)(f"{len(failures)} of {tried} ranks could not be attached to.", code=first.code)


def detach_all(connection: Connection, tell: Callable[[Facts], object] | None = None) -> None:
    """Take every agent out and print a line for each, or tell it; what has to stay is reported on stderr.

    Raises SilentError if a rank was not reached, DetachError if a snippet still holds one.
    """
    agents, left, held = list(connection.agents), [], None
    try:
        left = connection.detach()
    except DetachError as error:
        left, held = connection.notes, error
    for facts in agents:
        if (facts.rank or 0) not in {each.rank for each in connection.unreached}:
            (tell or _print_detached)(facts)
    for what in left:
        say(what)
    if held is not None:
        raise held
    if connection.unreached:
        reasons = "; ".join(each.why for each in connection.unreached)
        raise SilentError(f"Still attached: {reasons}.", "Run detach again later.")


def _print_detached(facts: Facts) -> None:
    click.echo(f"detached  {who(facts.rank, facts.pid)}")


def say_line(attached: Attached) -> None:
    """On stderr, where another command is what the user has asked for."""
    say(line(attached))


def line(attached: Attached) -> str:
    """`attached  rank 0  pid 4250  7 ms   python 3.11.7, torch 2.13.0`."""
    from probe.host.processes import is_stopped
    from probe.version import lacking

    status = "already " if attached.already else "attached"
    took = "" if attached.already else f"{attached.milliseconds:.0f} ms"
    torch = f"torch {attached.torch.partition('+')[0]}" if attached.torch else "no torch: its tables stay empty"
    torch += f": {lacks}" if attached.torch and (lacks := lacking(attached.torch)) else ""
    more = f", at {attached.tcp}" * bool(attached.tcp)
    more += f"; its name is {attached.renamed} now" * (attached.already and bool(attached.renamed))
    more += f"; it is stopped: kill -CONT {attached.pid}" * is_stopped(attached.pid)
    return f"{status}  {who(attached.rank, attached.pid)}  {took:<6} python {attached.python}, {torch}{more}"


def who(rank: int | None, pid: int) -> str:
    return f"rank {rank or 0}  pid {pid}"


def name_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--name NAME of verbs that attach, as the argument `name`: see checked_name."""
    return click.option("--name", metavar="NAME", help="Name the job: probe NAME query …")(function)


def checked_name(name: str | None) -> str:
    """A name that means nothing else on a command line, "" for none.  Raises UsageError."""
    from probe.client.endpoints import is_name

    if name is None or (name not in VERBS and is_name(name)):
        return name or ""
    malformed = "it is empty, contains : / , a space or what cannot be printed, or begins with a dash"
    why = "it is a verb" if name in VERBS else "it would be a pid" if name.isdigit() else malformed
    raise UsageError(f"{name!r} cannot be a name: {why}.", "Use letters, digits and dashes: --name exp7")
