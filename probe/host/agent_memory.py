"""The agent's memory read from outside: facts, rows and log of a process through /proc/<pid>/fd.

Called to find out who is attached, and to read a process that is stopped or no longer answers.  Invariant:
nothing is asked of the target, and its memory does not grow: holes are skipped, never read.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..client.clock_offsets import boot
from ..streams import (
    HEADER_BYTES,
    HEADER_HALF_LAYOUT,
    HEADER_HALVES,
    HEADER_LAYOUT,
    HEADER_MAGIC,
    HEADER_NAME,
    HEADER_VERSION,
    STEPS,
)
from .processes import start_ticks

if TYPE_CHECKING:
    from ..snapshot.snapshot import Job, Raw, Recent

Facts = dict[str, Any]
_PREFIX = "/memfd:probe-"
_TRIES = 20  # a reader that is preempted may come back to a half that was rewritten meanwhile


def descriptors(pid: int) -> dict[str, str]:
    """Name ("header", "log", a stream) -> path of each memfd of an agent in this process; {} if there is none."""
    found: dict[str, str] = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # not ours to look at, or gone
        return found
    for name in names:
        path = f"/proc/{pid}/fd/{name}"
        with contextlib.suppress(OSError):  # the target opens and closes files meanwhile
            link = os.readlink(path)
            if link.startswith(_PREFIX):
                found[link.removeprefix(_PREFIX).removesuffix(" (deleted)")] = path
    return found


def is_alone(pid: int) -> bool:
    """Whether there is but one agent in this process: several would have memory of the same names."""
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return sum(link.startswith(f"/memfd:{HEADER_NAME}") for link in links) == 1


def facts(pid: int) -> Facts | None:
    """What the agent in this process says about itself, None if there is no agent."""
    path = descriptors(pid).get(HEADER_NAME.removeprefix("probe-"))
    said = None if path is None else _header(path)
    # a child forked behind our back holds its parent's descriptors
    return said if said is not None and said.get("start_ticks") == start_ticks(pid) else None


def attached() -> Iterator[tuple[int, Facts]]:
    """Every process that has an agent and that we may look into, with its facts."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            said = facts(int(name))
            if said is not None:
                yield int(name), said


def here(said: Facts) -> int | None:
    """The process that says this of itself, as this machine sees it; None if it is elsewhere or hidden.

    Its own pid need not be the one that it has here: it may live in another pid namespace.
    """
    if not said.get("id") or said.get("boot_id") != boot():
        return None
    own = int(said["pid"])
    if (facts(own) or {}).get("id") == said["id"]:
        return own
    return next((pid for pid, other in attached() if other.get("id") == said["id"]), None)


def _header(path: str) -> Facts | None:
    for _ in range(_TRIES):
        try:
            with open(path, "rb", buffering=0) as file:
                said = _parsed(os.pread(file.fileno(), HEADER_BYTES, 0))
        except OSError:
            return None
        if said is not None:
            return said
    return None


def _parsed(data: bytes) -> Facts | None:
    try:
        magic, version, active = struct.unpack_from(HEADER_LAYOUT, data)
        if magic != HEADER_MAGIC or version != HEADER_VERSION:
            return None
        start = HEADER_HALVES[active]
        (length,) = struct.unpack_from(HEADER_HALF_LAYOUT, data, start)
        said = json.loads(data[start + 4 : start + 4 + length])
    except (ValueError, IndexError, struct.error):
        return None
    return said if isinstance(said, dict) else None


def snapshot(pids: Iterable[int], open_steps: bool = False) -> Job:
    """The same Job as off the wire, of processes that need not run."""
    from ..snapshot.snapshot import Job

    found = raws(pids)
    return Job(found, lambda stream: put_rows(found, stream), open_steps=open_steps)


def raws(pids: Iterable[int]) -> list[Raw]:
    """What is known of these processes; without those that have no agent, or end just now."""
    found = []
    for pid in pids:
        said = facts(pid)
        with contextlib.suppress(OSError, KeyError):
            found += [] if said is None else [_raw(pid, said)]
    return found


def put_rows(found: Iterable[Raw], stream: str, oldest: bool = False) -> None:
    """The rows of a stream as they lie there now; who asks for the oldest of them gets all."""
    for raw in found:
        try:
            raw.put(stream, list(_pieces(raw, stream)), oldest)
        except OSError:
            raw.job.leave(raw, f"Rank {raw.rank} (pid {raw.pid}) ended.")


def put_recent(found: Iterable[Recent], stream: str) -> None:
    """The same of ranks of which only the newest rows are wanted."""
    for recent in found:
        put_rows([recent.whole], stream)
        if recent.whole.has_rows(stream):
            recent.cut(stream, recent.whole.rows(stream).table)


def _raw(pid: int, said: Facts) -> Raw:
    from ..snapshot.log import Log
    from ..snapshot.snapshot import Raw

    log = Log()
    with open(descriptors(pid)["log"], "rb", buffering=0) as file:
        (committed,) = struct.unpack("<Q", os.pread(file.fileno(), 8, 0))
        log.feed(_read(file.fileno(), log.end, committed))
    # the readings in the header may be old: the target may stand still, the clocks do not
    clocks = {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
    raw = Raw(pid, {**said, **clocks}, {}, log)
    time_at, count_at = map(raw.slots(STEPS).index, ("time_ns", "count"))
    for rows in _pieces(raw, STEPS):  # the header may also be behind the steps
        if len(rows):
            raw.facts.update(count=int(rows[-1, count_at]) + 1, last_step_ns=int(rows[-1, time_at]))
    return raw


def _pieces(raw: Raw, stream: str) -> Iterator[Any]:
    """Complete rows by number: the ring's last lap, oldest chunk first."""
    import numpy as np

    path = descriptors(raw.pid).get(stream)
    if path is None:
        return
    width = len(raw.slots(stream))
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        ring = size // (8 * width)
        places = []
        for start, end in _filled(file.fileno(), size):
            first, last = start // (8 * width), -(-end // (8 * width))
            table = np.frombuffer(_read(file.fileno(), first * 8 * width, last * 8 * width), "<i8").reshape(-1, width)
            place = np.arange(first, first + len(table))
            places.append(table[(table[:, -1] > 0) & ((table[:, -1] - 1) % ring == place)])
    table = np.concatenate(places) if places else np.zeros((0, width), np.int64)
    newest = table[:, -1].max(initial=0)
    table = table[table[:, -1] > newest - ring]
    yield table[np.argsort(table[:, -1], kind="stable")]


def _filled(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where the file has data, in pieces of some chunks; reading a hole of a memfd through a map would fill it."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole to the end
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def _read(fd: int, start: int, end: int) -> bytes:
    data = b""
    while start + len(data) < end:
        piece = os.pread(fd, min(end - start - len(data), 1 << 30), start + len(data))
        if not piece:
            break
        data += piece
    return data
