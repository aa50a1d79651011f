"""Two looks at every rank, a second apart, and one at their machines: the evidence on a job that may be stuck.

Called by Insight.hang; probe.diagnose.verdict judges what it gives.  Invariant: a rank that does not answer costs one
time-out, and what it does instead is read from outside; nothing here changes the job.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ... import protocol as wire
from ...arrays.arrow import table_of
from ...attach.gil_holder import describe_gil_holder
from ...client.agent_requests import wait_for_each
from ...client.client import AgentLink, Client, Header
from ...client.handshake import go_around_servers
from ...derive.partition import Partition
from ...errors import SilentError
from ...host.processes import has_ended, is_stopped, process, ranks_below
from ...host.processor_use import Load, loads
from ...snapshot.flight_recorder import Entry, Pending, entries_of
from ...snapshot.live_stacks import STARTS_S, live_stacks
from ...snapshot.memory_source import MemorySource
from ...snapshot.snapshot import Snapshot
from ...snapshot.source import Rank, RankLeft
from ...snapshot.stacks import Frame, Thread, training_thread, trains
from ...snapshot.wire_source import WireSource
from ...streams import SAMPLES
from ...tables.declaration import Table
from ...tables.host.gpu_trace import TABLE as GPU
from ...tables.host.process_trace import TABLE as PROCESS
from ...text import grouped, title
from .evidence import Evidence, RankEvidence
from .in_flight import issued_of, pairs_of
from .pauses import Pauses, pauses_of
from .processor_time import simplest_poll_s, work

_MORE = 2  # times as much patience with a rank that has not answered
_STACKS_S = 0.05  # for those of one rank, which a process on its host reads, one after the other
_NCCL = "nccl"


@dataclass
class _Look:
    """One look at every rank that answers.  asked_at, over_at: monotonic."""

    asked_at: float
    over_at: float
    headers: dict[AgentLink, Header]
    threads: dict[AgentLink, list[Thread]]
    loads: dict[AgentLink | int, Load]  # of ranks, and of processes without an agent by pid; the thread that trains


@dataclass
class _Issued:
    """What ranks have issued, the members of their groups, and the load of their machines, in lines."""

    entries: Mapping[int, Sequence[Entry]] = field(default_factory=dict)  # by rank
    groups: dict[str, Sequence[int]] = field(default_factory=dict)
    pairs: Sequence[Pending] = ()
    machines: Sequence[str] = ()
    pauses: Pauses = field(default_factory=Pauses)


def gather(client: Client, endpoint: str, patience: float, look_s: float) -> Evidence:
    """patience: seconds for the answer to each look; who does not answer is asked again from the next call on.

    A recorder's dump stops its process for some 40 ms, so no rank is asked for it if all of them record rows.
    """
    others = _others(endpoint, {link.pid for link in client.links if link.here})
    first = _look(client, client.links, patience, others, STARTS_S)
    poll_s = simplest_poll_s()
    time.sleep(max(0.0, first.over_at + look_s - time.monotonic()))
    heard = _heard(client.links, first)
    second = _look(client, list(first.headers), patience, others, _STACKS_S * _most_of_a_server(heard), heard)
    _listen_again(client, second, _MORE * patience)
    issued = _Issued()
    if not all(_rows(link, first, second) for link in client.links):
        issued = _issued(client, list(second.headers), patience)
    ranks = [
        replace(_of_rank(link, first, second, issued.entries.get(link.rank, ())), poll_s=poll_s)
        for link in client.links
    ]
    for rank, pid in others:
        condition = "stopped" if is_stopped(pid) else "unattached"
        running, core_wait, work_s, *_ = _done(pid, first, second)
        found = RankEvidence(rank, pid, condition, running=running, core_wait=core_wait, work_s=work_s)
        ranks.append(replace(found, gil=describe_gil_holder(pid)))
    ranks.sort(key=lambda each: each.rank)
    client.forgive()
    return Evidence(
        endpoint, ranks, _absent(endpoint, ranks), issued.groups, time.time_ns(), second.asked_at - first.asked_at,
        issued.pairs, issued.machines, issued.pauses,
    )  # fmt: skip


def _heard(links: Sequence[AgentLink], look: _Look) -> list[AgentLink]:
    """Without ranks on other hosts of whose server nothing has come: each further question would cost a time-out."""
    answering = {link.route.carrier for link in (*look.headers, *look.threads) if link.route is not None}
    return [link for link in links if link.here or (link.route is not None and link.route.carrier in answering)]


def _most_of_a_server(links: Sequence[AgentLink]) -> int:
    """How many of these ranks one server stands beside, at most."""
    counts = Counter(link.route.carrier for link in links if link.route is not None and link.is_served)
    return max(counts.values(), default=0)


def _listen_again(client: Client, look: _Look, patience: float) -> None:
    """Give those a second chance that have not answered, without their server: on a full machine that may stall."""
    lacking = [link for link in client.links if link not in look.headers and link.route is not None]
    if mute := [link for link in lacking if not link.gone and not link.stopped]:
        client.forgive()
        go_around_servers(client, mute, patience)
        again = _look(client, [link for link in mute if not link.silent], patience, [])
        look.headers.update(again.headers)
        look.threads.update(again.threads)


def _issued(client: Client, links: Sequence[AgentLink], patience: float) -> _Issued:
    """By torch's recorders, which hold what was issued before the attach; by the rows since the attach if the recorders
    are empty, or if something is in flight there on a device, or while a rank does not answer: the rows tell whether
    the device has come to it, and lie in the memory of a rank."""
    calls = [client.send(link, wire.FLIGHT) for link in links]
    wait_for_each(client, calls, patience)  # a megabyte each, of many ranks
    told = {call.link: call.answer for call in calls if call.answer is not None}
    found = _Issued(
        {link.rank: entries_of(answer["texts"], link.facts.wall_correction_ns) for link, answer in told.items()}
    )
    for answer in told.values():
        found.groups.update({name: members for name, members in answer["groups"].items() if members})
    with contextlib.suppress(SilentError):
        job = Snapshot([WireSource(client, patience, newest=wire.ROWS_A_MESSAGE)], open_steps=True)
        found.pairs, found.machines, found.pauses = pairs_of(job), machines_told(job), pauses_of(job)
        untold = not any(found.entries.values())
        told_of = (each for entries in found.entries.values() for each in entries)
        on_device = any(not each.ended and each.backend == _NCCL for each in told_of)
        if untold or job.read or on_device:
            issued = issued_of(job)
            in_flight = any(not entry.ended for entries in issued.values() for entry in entries)
            found.entries = issued if untold or in_flight else found.entries
    return found


def _look(
    client: Client, links: Sequence[AgentLink], patience: float, others: Sequence[tuple[int, int]],
    starts_s: float = 0.0, read: Sequence[AgentLink] | None = None,
) -> _Look:  # fmt: skip
    """starts_s: as live_stacks has it; read: whose stacks are, None: all."""
    read, asked_at = client.links if read is None else read, time.monotonic()
    calls = client.ask(wire.SNAPSHOT, time.monotonic() + patience, links)
    headers = {call.link: call.answer for call in calls if call.answer is not None}
    done = dict[AgentLink | int, Load]()
    threads, _ = live_stacks(client, read, time.monotonic() + patience, None, starts_s, done)
    here = {link.pid: link for link in client.links if link.here}
    of_pids = dict.fromkeys(pid for _, pid in others) | {pid: trains(threads.get(on, ())) for pid, on in here.items()}
    done |= {here.get(pid, pid): each for pid, each in loads(of_pids).items()}
    return _Look(asked_at, time.monotonic(), headers, threads, done)


def _done(
    one: AgentLink | int, first: _Look, second: _Look
) -> tuple[float | None, float, float | None, float | None, int]:
    """What a process has done between the two: the share of a core that its thread used, how long that waited for one,
    and its work each time that it woke; what the processes below it used; and how many bytes it has moved."""
    before, after = first.loads.get(one), second.loads.get(one)
    if before is None or after is None:
        return None, 0.0, None, None, 0
    look_s = max(after.at - before.at, 1e-3)
    below, moved = (after.below_s - before.below_s) / look_s, after.moved_bytes - before.moved_bytes
    running, work_s = work(before.used, after.used, look_s)
    return running, min(1.0, max(0.0, after.waited_s - before.waited_s) / look_s), work_s, below, moved


def _rows(link: AgentLink, first: _Look, second: _Look) -> int:
    """How many rows a rank has recorded of the job between the two looks; samples of the machine do not count."""
    if link not in first.headers or link not in second.headers:
        return 0
    earlier, later = first.headers[link]["streams"], second.headers[link]["streams"]
    return sum(int(at) - int(earlier.get(name, at)) for name, at in later.items() if name != SAMPLES)


def _of_rank(link: AgentLink, first: _Look, second: _Look, entries: Sequence[Entry]) -> RankEvidence:
    pid, (running, core_wait, work_s, below, moved_bytes) = link.pid, _done(link, first, second)
    said = second.headers[link]["facts"] if link in second.headers else None
    facts = said or (next(iter(MemorySource(link.pid).facts()), None) if link.here else None)
    condition = "answers" if said else _condition(link)
    gil = describe_gil_holder(link.pid) if condition == "silent" and link.here else ""
    seen = RankEvidence(
        link.rank, pid, condition, running=running, core_wait=core_wait, work_s=work_s, below=below,
        moved_bytes=moved_bytes, gil=gil, host=link.host,
    )  # fmt: skip
    threads, before = second.threads.get(link, []), first.threads.get(link, [])
    sleeps = all(each is not None and each.sleeps for each in (first.loads.get(link), second.loads.get(link)))
    moved = bool(before) and _frames(before) != _frames(threads)
    seen = replace(seen, threads=threads, moved=moved, sleeps=sleeps)
    if facts is None:
        return seen
    now, last, tap = facts.monotonic_ns, facts.last_step_ns, facts.taps.get("collectives", "")
    return replace(
        seen,
        steps=facts.step,
        step_age_s=(now - last) / 1e9 if last else None,
        usual_step_s=facts.step_ns / 1e9 if facts.step_ns else None,
        holder=facts.holder or "",
        held_s=(now - facts.held_since_ns) / 1e9 if facts.held_since_ns else None,
        freed_s=(now - facts.freed_ns) / 1e9 if facts.freed_ns else None,
        attached_s=(now - facts.attached_ns) / 1e9 if facts.attached_ns else None,
        rows=_rows(link, first, second),
        entries=entries,
        workers=_workers(link.pid) if link.here else (),
        on_device="device" in facts.taps,
        left_alone=tap.removeprefix("off: ") if tap.endswith(wire.LEFT_ALONE) else "",
    )


def _condition(link: AgentLink) -> str:
    if link.ended or (link.here and has_ended(link.pid)):
        return "ended"
    return "stopped" if link.stopped else "silent" if link.route is not None else "unseen"


def _others(endpoint: str, known: set[int]) -> list[tuple[int, int]]:
    """Rank and pid of the ranks under the same launcher that have no agent."""
    below = ranks_below(int(endpoint)) if endpoint.isdecimal() else []
    return [(each.rank or 0, each.pid) for each in below if each.rank is not None and each.pid not in known]


def _absent(endpoint: str, ranks: Sequence[RankEvidence]) -> tuple[int, ...]:
    """Ranks without a process; known only if the endpoint is a launcher whose whole job runs on this machine."""
    if not endpoint.isdecimal() or endpoint in {str(each.pid) for each in ranks}:
        return ()
    known = [found for each in ranks if not each.host and (found := process(each.pid)) is not None]
    sizes = {(found.world_size, found.local_world_size) for found in known}
    if len(sizes) != 1:
        return ()
    ((size, local),) = sizes
    return tuple(sorted(set(range(size)) - {each.rank for each in ranks})) if size and size == local else ()


def _frames(threads: Sequence[Thread]) -> tuple[Frame, ...]:
    thread = training_thread(threads)
    return () if thread is None else thread.frames


def _workers(pid: int) -> list[str]:
    """The child processes that ended or are stopped, in words."""
    found = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        for child in map(int, file.read().split()):
            if has_ended(child):
                found.append(f"child process {child} has ended")
            elif is_stopped(child):
                found.append(f"child process {child} is stopped")
    return found


def machines_told(job: Snapshot) -> list[str]:
    """The load by the newest samples: `host a: 37 % of its cores busy, 12 % of its memory used`, `devices 100 % busy on
    ranks 0-5, 0 % on rank 6`; without a host that no rank has sampled."""
    hosts: dict[str, str] = {}
    devices: list[tuple[str, int]] = []
    for rank in list(job.ranks):
        with contextlib.suppress(RankLeft):
            hosts[rank.host] = hosts.setdefault(rank.host, "") or _host_load(rank)
            devices += [(load, rank.rank) for load in _device_loads(rank)]
    told = [f"host {name}: {line}" for name, line in hosts.items() if line]
    busy = ", ".join(f"{load} on {title(sorted(set(ranks)))}" for load, ranks in grouped(devices).items())
    return [*told, f"devices {busy}"] if busy else told


def _host_load(rank: Rank) -> str:
    rows = _samples(rank, PROCESS, ("host_cpu_pct", "host_memory_used_pct"))
    last = rows[-1] if rows else {}
    parts = ((last.get("host_cpu_pct"), "cores busy"), (last.get("host_memory_used_pct"), "memory used"))
    return ", ".join(f"{value:.0f} % of its {what}" for value, what in parts if value is not None)


def _device_loads(rank: Rank) -> Iterator[str]:
    rows = _samples(rank, GPU, ("device", "start_ns", "gpu_util_pct"))
    for row in rows:
        if row["start_ns"] == rows[-1]["start_ns"] and row["gpu_util_pct"] is not None:
            yield f"{row['gpu_util_pct']:.0f} % busy"


def _samples(rank: Rank, table: Table, names: tuple[str, ...]) -> list[dict[str, Any]]:
    assert table.derive is not None  # of the two tables here
    columns = [column for column in table.columns if column.name in names]
    return list(table_of(columns, table.derive(Partition.of(rank))).to_pylist())
