"""What can be seen of a job that does not go on: two looks at every rank, a second apart.

Called by Connection.hang; probe.hang judges it.  Invariant: a rank that does not answer costs one time-out, and what
it does instead is looked up from outside; nothing here changes the job.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import protocol as wire
from .client import Client, Header, Link
from .flight import Entry, entries_of
from .processes import has_ended, is_stopped, process, ranks_below
from .stacks import Thread, threads_of

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class OfRank:
    """One rank.  condition: answers, silent, stopped, ended, unattached or unseen (not below the endpoint); times in
    seconds, None where unknown."""

    rank: int
    pid: int
    condition: str
    steps: int | None = None  # of the job, completed
    step_age_s: float | None = None  # since the last one ended
    usual_step_s: float | None = None
    attached_s: float | None = None  # since the attach
    rows: int = 0  # recorded between the two looks
    running: float | None = None  # share of a core that the main thread used between the two looks
    threads: Sequence[Thread] = ()  # at the second look
    moved: bool = False  # the main thread stood elsewhere at the first look
    entries: Sequence[Entry] = ()  # of the Flight Recorder
    no_entries: str = ""  # why there are none
    in_flight: Sequence[Mapping[str, object]] = ()  # rows of python.nccl_trace
    workers: Sequence[str] = ()  # of its loaders, what is the matter with them

    @property
    def main(self) -> Thread | None:
        return next((thread for thread in self.threads if thread.is_main), None)


@dataclass(frozen=True)
class Evidence:
    """All ranks, by rank; groups: name -> members; now_ns: wall clock of the second look; absent: ranks that should
    be processes of this machine and are none."""

    endpoint: str
    ranks: Sequence[OfRank]
    absent: tuple[int, ...]
    groups: Mapping[str, Sequence[int]]
    now_ns: int
    look_s: float

    def of(self, rank: int) -> OfRank | None:
        return next((each for each in self.ranks if each.rank == rank), None)


@dataclass
class _Look:
    """One look at every rank that answers."""

    at: float
    said: dict[Link, Header]
    threads: dict[Link, list[Thread]]
    cpu: dict[int, float]  # by pid: processor time of the main thread so far, in seconds


def gather(client: Client, endpoint: str, in_flight: Mapping[int, Sequence[Mapping[str, object]]], patience: float,
           look_s: float) -> Evidence:  # fmt: skip
    """in_flight: operations by rank, out of their rows; patience: seconds for the answer to each look."""
    others = _others(endpoint, {link.pid for link in client.links})
    first = _look(client, patience, others)
    time.sleep(max(0.0, first.at + look_s - time.monotonic()))
    second = _look(client, patience, others)
    told = {call.link: call.answer for call in client.ask(wire.FLIGHT, time.monotonic() + patience) if call.answer}
    groups: dict[str, Sequence[int]] = {}
    for answer in told.values():
        groups.update({name: members for name, members in answer["groups"].items() if members})
    ranks = [_of_rank(link, first, second, told.get(link), in_flight) for link in client.links]
    for rank, pid in others:
        condition = "stopped" if is_stopped(pid) else "unattached"
        ranks.append(OfRank(rank, pid, condition, running=_share(pid, first, second)))
    ranks.sort(key=lambda each: each.rank)
    return Evidence(endpoint, ranks, _absent(endpoint, ranks), groups, time.time_ns(), second.at - first.at)


def _look(client: Client, patience: float, others: Sequence[tuple[int, int]]) -> _Look:
    end = time.monotonic() + patience
    said = {call.link: call.answer for call in client.ask(wire.SNAPSHOT, end) if call.answer is not None}
    for link in client.links:
        link.silent = link.silent or ("" if link in said else "does not answer")
    told = client.ask(wire.STACKS, time.monotonic() + patience, list(said))
    threads = {call.link: threads_of(call.answer["threads"]) for call in told if call.answer is not None}
    pids = [*(link.pid for link in client.links), *(pid for _, pid in others)]
    return _Look(time.monotonic(), said, threads, {pid: _cpu_s(pid) for pid in pids})


def _share(pid: int, first: _Look, second: _Look) -> float:
    """Of a core that the main thread used between two looks."""
    return (second.cpu[pid] - first.cpu[pid]) / max(second.at - first.at, 1e-3)


def _of_rank(
    link: Link, first: _Look, second: _Look, flight: Header | None,
    in_flight: Mapping[int, Sequence[Mapping[str, object]]],
) -> OfRank:  # fmt: skip
    running = _share(link.pid, first, second)
    if link not in second.said:
        return OfRank(link.rank, link.pid, _condition(link.pid), running=running)
    before, header = first.said.get(link), second.said[link]
    facts, threads = header["facts"], second.threads.get(link, [])
    now, last = int(facts["monotonic_ns"]), facts.get("last_step_ns")
    ours = {name: int(at) for name, at in header["streams"].items() if name not in ("samples",)}
    earlier = before["streams"] if before else ours
    main = [
        next((each.frames for each in looked if each.is_main), None)
        for looked in (first.threads.get(link, []), threads)
    ]
    return OfRank(
        link.rank,
        link.pid,
        "answers",
        steps=int(facts.get("step_base") or 0) + int(facts.get("count") or 0),
        step_age_s=(now - int(last)) / 1e9 if last else None,
        usual_step_s=int(facts["step_ns"]) / 1e9 if facts.get("step_ns") else None,
        attached_s=(now - int(facts["attached_ns"])) / 1e9,
        rows=sum(at - int(earlier.get(name, at)) for name, at in ours.items()),
        running=running,
        threads=threads,
        moved=main[0] != main[1],
        entries=entries_of(str(flight["text"])) if flight else [],
        no_entries=str(flight["why_not"]) if flight else "it did not answer",
        in_flight=in_flight.get(link.rank, ()),
        workers=_workers(link.pid),
    )


def _condition(pid: int) -> str:
    if has_ended(pid):
        return "ended"
    return "stopped" if is_stopped(pid) else "silent"


def _others(endpoint: str, known: set[int]) -> list[tuple[int, int]]:
    """Rank and pid of the processes below the same launcher that nobody is attached to."""
    if not endpoint.isdecimal():
        return []
    below = [each for each in ranks_below(int(endpoint)) if each.rank is not None and each.pid not in known]
    return [(each.rank or 0, each.pid) for each in below]


def _absent(endpoint: str, ranks: Sequence[OfRank]) -> tuple[int, ...]:
    """Ranks of a launcher that has all of its job on this machine and is asked about as a whole."""
    if endpoint in {str(each.pid) for each in ranks}:
        return ()
    known = [found for each in ranks if (found := process(each.pid)) is not None]
    sizes = {(found.world_size, found.local_world_size) for found in known}
    if len(sizes) != 1:
        return ()
    ((size, local),) = sizes
    return tuple(sorted(set(range(size)) - {each.rank for each in ranks})) if size and size == local else ()


def _cpu_s(pid: int) -> float:
    """Processor time of the main thread so far."""
    try:
        with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, ValueError, IndexError):
        return 0.0


def _workers(pid: int) -> list[str]:
    """What is the matter with the processes that it has started itself: those that ended or are stopped."""
    found = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        for child in map(int, file.read().split()):
            if has_ended(child):
                found.append(f"child process {child} has ended")
            elif is_stopped(child):
                found.append(f"child process {child} is stopped")
    return found
