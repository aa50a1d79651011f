"""Rows, log and facts of processes out of their memory, for those that are stopped or do not answer.

Called by the wire source for silent ranks of this machine.  Invariant: nothing is asked of the target.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..host import agent_memory
from ..host.agent_memory import Facts, descriptors, filled, read_range
from ..streams import STEPS
from .log import Log
from .snapshot import Rank, RecentRows, Snapshot


def snapshot(pids: Iterable[int], open_steps: bool = False) -> Snapshot:
    """The same Job as off the wire, of processes that need not run."""
    found = ranks(pids)
    return Snapshot(found, lambda stream: put_rows(found, stream), open_steps=open_steps)


def ranks(pids: Iterable[int]) -> list[Rank]:
    """What is known of these processes; without those that have no agent, or end just now."""
    found = []
    for pid in pids:
        said = agent_memory.facts(pid)
        with contextlib.suppress(OSError, KeyError):
            found += [] if said is None else [_raw(pid, said)]
    return found


def put_rows(found: Iterable[Rank], stream: str, oldest: bool = False) -> None:
    """The rows of a stream as they lie there now; who asks for the oldest of them gets all."""
    for raw in found:
        try:
            raw.put(stream, list(_pieces(raw, stream)), oldest)
        except OSError:
            raw.snapshot.leave(raw, f"Rank {raw.rank} (pid {raw.pid}) ended.")


def put_recent(found: Iterable[RecentRows], stream: str) -> None:
    """The same of ranks of which only the newest rows are wanted."""
    for recent in found:
        put_rows([recent.whole], stream)
        if recent.whole.has_rows(stream):
            recent.cut(stream, recent.whole.rows(stream).table)


def _raw(pid: int, said: Facts) -> Rank:
    log = Log()
    with open(descriptors(pid)["log"], "rb", buffering=0) as file:
        (committed,) = struct.unpack("<Q", os.pread(file.fileno(), 8, 0))
        log.feed(read_range(file.fileno(), log.end, committed))
    # the readings in the header may be old: the target may stand still, the clocks do not
    clocks = {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
    raw = Rank(pid, {**said, **clocks}, {}, log)
    time_at, count_at = map(raw.slots(STEPS).index, ("time_ns", "count"))
    for rows in _pieces(raw, STEPS):  # the header may also be behind the steps
        if len(rows):
            raw.facts.update(count=int(rows[-1, count_at]) + 1, last_step_ns=int(rows[-1, time_at]))
    return raw


def _pieces(raw: Rank, stream: str) -> Iterator[Any]:
    """Complete rows by number: the ring's last lap, oldest chunk first."""
    path = descriptors(raw.pid).get(stream)
    if path is None:
        return
    width = len(raw.slots(stream))
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        ring = size // (8 * width)
        places = []
        for start, end in filled(file.fileno(), size):
            first, last = start // (8 * width), -(-end // (8 * width))
            table = np.frombuffer(read_range(file.fileno(), first * 8 * width, last * 8 * width), "<i8").reshape(
                -1, width
            )
            place = np.arange(first, first + len(table))
            places.append(table[(table[:, -1] > 0) & ((table[:, -1] - 1) % ring == place)])
    table = np.concatenate(places) if places else np.zeros((0, width), np.int64)
    newest = table[:, -1].max(initial=0)
    table = table[table[:, -1] > newest - ring]
    yield table[np.argsort(table[:, -1], kind="stable")]
