"""The rank in a process of this machine, out of the memory of its agent: for one that is stopped or does not answer.

Used by the wire source for silent ranks.  Invariant: nothing is asked of the target, which need not run.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..arrays.integers import Ints
from ..errors import SilentError
from ..host import agent_memory
from ..host.agent_memory import descriptors, filled, read_range
from ..host.facts import Facts
from ..streams import STEPS
from .log import Log
from .source import Rank, Source


class MemorySource(Source):
    """known: the facts by which the steps of this rank are numbered, where a connection has found that out."""

    def __init__(self, pid: int, known: Facts | None = None) -> None:
        self._pid, self._known = pid, known
        self._tables: dict[str, Ints] = {}

    def ranks(self) -> Sequence[Rank]:
        """None where the process has no agent, or ends just now."""
        facts = agent_memory.facts(self._pid)
        self._tables.clear()
        if facts is None:
            return []
        try:
            log = Log()
            with open(descriptors(self._pid)["log"], "rb", buffering=0) as file:
                (committed,) = struct.unpack("<Q", os.pread(file.fileno(), 8, 0))
                log.feed(read_range(file.fileno(), log.end, committed))
            steps = self._table(STEPS, facts)
        except (OSError, KeyError):
            return []
        # the readings in the header may be old: the target may stand still, the clocks do not
        facts = replace(facts, monotonic_ns=time.monotonic_ns(), wall_ns=time.time_ns())
        if len(steps):  # the header may also be behind the steps
            last = dict(zip(facts.slots(STEPS), steps[-1].tolist(), strict=True))
            facts = replace(facts, count=last["count"] + 1, last_step_ns=last["time_ns"])
        if self._known is not None:
            facts = replace(facts, step_base=self._known.step_base, step_source=self._known.step_source)
        return [Rank(self._pid, facts, {}, log)]

    def rows(self, stream: str, since_ns: Mapping[Rank, int | None]) -> Mapping[Rank, Ints]:
        """All rows as they lay there when the stream was first asked for."""
        found = {}
        for rank in since_ns:
            try:
                found[rank] = self._table(stream, rank.facts)
            except OSError:
                rank.leave(SilentError(f"Rank {rank.rank} (pid {rank.pid}) ended."))
        return found

    def _table(self, stream: str, facts: Facts) -> Ints:
        if stream not in self._tables:
            path, slots = descriptors(self._pid).get(stream), len(facts.slots(stream))
            self._tables[stream] = np.zeros((0, slots), np.int64) if path is None else _rows(path, slots)
        return self._tables[stream]


def _rows(path: str, slots: int) -> Ints:
    """Complete rows by number: the ring's last lap, oldest chunk first."""
    row_bytes, parts = 8 * slots, [np.zeros((0, slots), np.int64)]
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        ring = size // row_bytes
        for start, end in filled(file.fileno(), size):
            first, last = start // row_bytes, -(-end // row_bytes)
            part = np.frombuffer(read_range(file.fileno(), first * row_bytes, last * row_bytes), "<i8")
            part = part.reshape(-1, slots)
            parts.append(part[(part[:, -1] > 0) & ((part[:, -1] - 1) % ring == np.arange(first, first + len(part)))])
    table: Ints = np.concatenate(parts)
    table = table[table[:, -1] > table[:, -1].max(initial=0) - ring]
    return table[np.argsort(table[:, -1], kind="stable")]
