"""What can be seen of a job that does not go on: two looks at every rank, a second apart.

Called by Connection.hang; probe.diagnose.hang judges it.  Invariant: a rank that does not answer costs one time-out,
and what it does instead is looked up from outside; nothing here changes the job.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .. import protocol as wire
from ..attach.gil_holder import describe_gil_holder
from ..client.client import AgentLink, Client, Header
from ..errors import SilentError
from ..host.processes import has_ended, is_stopped, process, ranks_below
from ..snapshot import memory_source
from ..snapshot.flight_recorder import Entry, Pending, entries_of
from ..snapshot.stacks import Thread, threads_of
from ..snapshot.wire_source import WireSource
from ..streams import SAMPLES
from .issued_collectives import issued_of
from .machine_load import machines_told
from .point_to_point import pairs_of

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
    entries: Sequence[Entry] = ()  # what it has issued
    workers: Sequence[str] = ()  # of its loaders, what is the matter with them
    gil: str = ""  # of one that does not answer: who holds its GIL, in words
    host: str = ""  # that its process is on, where it is another one than this

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
    pairs: Sequence[Pending] = ()  # operations between two ranks
    machines: Sequence[str] = ()  # what hosts and devices are at, in lines


@dataclass
class _Look:
    """One look at every rank that answers."""

    at: float
    said: dict[AgentLink, Header]
    threads: dict[AgentLink, list[Thread]]
    cpu: dict[int, float]  # by pid: processor time of the main thread so far, in seconds


def gather(client: Client, endpoint: str, patience: float, look_s: float) -> Evidence:
    """patience: seconds for the answer to each look.

    A recorder's dump stops its process for some 40 ms: where rows come from every rank nobody is asked for it.
    """
    others = _others(endpoint, {link.pid for link in client.links if link.here})
    first = _look(client, client.links, patience, others)
    time.sleep(max(0.0, first.at + look_s - time.monotonic()))
    second = _look(client, list(first.said), patience, others)
    issued = _Issued()
    if not all(_rows(link, first, second) for link in client.links):
        issued = _issued(client, list(second.said), patience)
    ranks = [_of_rank(link, first, second, issued.entries.get(link.rank, ())) for link in client.links]
    for rank, pid in others:
        condition = "stopped" if is_stopped(pid) else "unattached"
        ranks.append(OfRank(rank, pid, condition, running=_share(pid, first, second), gil=describe_gil_holder(pid)))
    ranks.sort(key=lambda each: each.rank)
    return Evidence(
        endpoint, ranks, _absent(endpoint, ranks), issued.groups, time.time_ns(), second.at - first.at, issued.pairs,
        issued.machines,
    )  # fmt: skip


@dataclass
class _Issued:
    """What ranks have issued, and the members of their groups."""

    entries: Mapping[int, Sequence[Entry]] = field(default_factory=dict)  # by rank
    groups: dict[str, Sequence[int]] = field(default_factory=dict)
    pairs: Sequence[Pending] = ()
    machines: Sequence[str] = ()


def _issued(client: Client, links: Sequence[AgentLink], patience: float) -> _Issued:
    """By torch's recorders, which know what was before the attach; by the rows since, where these tell nothing, or
    where a rank does not answer and something is in flight: its rows lie in its memory."""
    calls = client.ask(wire.FLIGHT, time.monotonic() + patience, links)
    told = {call.link: call.answer for call in calls if call.answer is not None}
    found = _Issued({link.rank: entries_of(answer["texts"]) for link, answer in told.items()})
    for answer in told.values():
        found.groups.update({name: members for name, members in answer["groups"].items() if members})
    with contextlib.suppress(SilentError):
        job = WireSource(client, patience).snapshot(open_steps=True, newest=wire.ROWS_A_MESSAGE)
        found.pairs, found.machines = pairs_of(job), machines_told(job)
        untold = not any(found.entries.values())
        if untold or job.read:
            issued = issued_of(job)
            found.entries = issued if untold or _waits(issued) else found.entries
    return found


def _waits(entries: Mapping[int, Sequence[Entry]]) -> bool:
    return any(not entry.ended for of_rank in entries.values() for entry in of_rank)


def _look(client: Client, links: Sequence[AgentLink], patience: float, others: Sequence[tuple[int, int]]) -> _Look:
    calls = client.ask(wire.SNAPSHOT, time.monotonic() + patience, links)
    said = {call.link: call.answer for call in calls if call.answer is not None}
    told = client.ask(wire.STACKS, time.monotonic() + patience, list(said))
    threads = {call.link: threads_of(call.answer["threads"]) for call in told if call.answer is not None}
    pids = [*(link.pid for link in client.links if link.here), *(pid for _, pid in others)]
    return _Look(time.monotonic(), said, threads, {pid: _cpu_s(pid) for pid in pids})


def _rows(link: AgentLink, first: _Look, second: _Look) -> int:
    """How many it has recorded of what the job does between the two looks."""
    if link not in second.said:
        return 0
    earlier, later = first.said[link]["streams"], second.said[link]["streams"]
    return sum(int(at) - int(earlier.get(name, at)) for name, at in later.items() if name != SAMPLES)


def _share(pid: int, first: _Look, second: _Look) -> float:
    """Of a core that the main thread of a process of this machine used between two looks."""
    return (second.cpu[pid] - first.cpu[pid]) / max(second.at - first.at, 1e-3)


def _of_rank(link: AgentLink, first: _Look, second: _Look, entries: Sequence[Entry]) -> OfRank:
    running = _share(link.pid, first, second) if link.here else None
    said = second.said[link]["facts"] if link in second.said else None
    facts = said or next((raw.facts for raw in memory_source.ranks([link.pid] if link.here else [])), None)
    condition = "answers" if said else _condition(link)
    gil = describe_gil_holder(link.pid) if condition == "silent" and link.here else ""
    if facts is None:
        return OfRank(link.rank, link.pid, condition, running=running, gil=gil, host=link.host)
    threads = second.threads.get(link, [])
    now, last = int(facts["monotonic_ns"]), facts.get("last_step_ns")
    main = [
        next((each.frames for each in looked if each.is_main), None)
        for looked in (first.threads.get(link, []), threads)
    ]
    return OfRank(
        link.rank,
        link.pid,
        condition,
        steps=int(facts.get("step_base") or 0) + int(facts.get("count") or 0),
        step_age_s=(now - int(last)) / 1e9 if last else None,
        usual_step_s=int(facts["step_ns"]) / 1e9 if facts.get("step_ns") else None,
        attached_s=(now - int(facts["attached_ns"])) / 1e9 if facts.get("attached_ns") else None,
        rows=_rows(link, first, second),
        running=running,
        threads=threads,
        moved=main[0] != main[1],
        entries=entries,
        workers=_workers(link.pid) if link.here else (),
        gil=gil,
        host=link.host,
    )


def _condition(link: AgentLink) -> str:
    if link.ended or (link.here and has_ended(link.pid)):
        return "ended"
    if link.stopped:
        return "stopped"
    return "silent" if link.socket is not None else "unseen"


def _others(endpoint: str, known: set[int]) -> list[tuple[int, int]]:
    """Rank and pid of the processes below the same launcher that nobody is attached to."""
    if not endpoint.isdecimal():
        return []
    below = [each for each in ranks_below(int(endpoint)) if each.rank is not None and each.pid not in known]
    return [(each.rank or 0, each.pid) for each in below]


def _absent(endpoint: str, ranks: Sequence[OfRank]) -> tuple[int, ...]:
    """Ranks of a launcher that has all of its job on this machine and is asked about as a whole."""
    if not endpoint.isdecimal() or endpoint in {str(each.pid) for each in ranks}:
        return ()
    known = [found for each in ranks if not each.host and (found := process(each.pid)) is not None]
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
