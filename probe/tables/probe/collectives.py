"""probe.collectives: one row per operation of a group over all its ranks: who came when, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...arrays.arrow import nullable, stacked
from ...arrays.integers import Bools, Ints
from ...derive.operation_types import STATES, operation_type, states
from ...derive.operations import Operations, operations_of
from ...schema import Column, Columns
from ...snapshot.snapshot import Snapshot
from ...streams import CAPTURED, COLLECTIVES, END_UNKNOWN
from ...text import grouped, title
from ..declaration import Table

_UNEVEN = ("c10d::alltoall_", "c10d::alltoall_base_", "c10d::allgather_")  # ranks may give unequal parts


def derive(job: Snapshot) -> Columns:
    """Operations of the steps that may be seen, and every one that is in flight somewhere."""
    return stacked(TABLE.columns, [_OfGroup(operations, job).columns() for operations in operations_of(job)])


class _OfGroup:
    """The shown operations of one group; each column over them."""

    def __init__(self, operations: Operations, job: Snapshot) -> None:
        self._all = operations
        self._members = np.array(operations.members, np.int64)
        self._start, self._done = operations.slot("start_ns"), operations.slot("done_ns")
        self._in_flight: Bools = operations.arrived & (self._done == 0)
        self._shown = np.flatnonzero(self._in_flight.any(axis=1) | self._visible())
        self._flags = operations.slot("flags")[self._shown]

    def _visible(self) -> Bools:
        seen = [rank.timeline.visible(self._all.step) for rank in self._all.ranks if rank is not None]
        result: Bools = np.logical_and.reduce(seen)
        return result

    def columns(self) -> dict[str, Any]:
        of, shown = self._all, self._shown
        arrived, time = of.arrived[shown], of.time[shown]
        early = np.where(arrived, time, np.iinfo(np.int64).max)
        first, last = early.argmin(axis=1), np.where(arrived, time, -1).argmax(axis=1)
        rows = np.arange(len(shown))
        came, went = time[rows, first], time[rows, last]
        number = of.slot("group_seq", -1)[shown][rows, first]
        return {
            "step": of.step[shown],
            "index_in_step": of.index[shown],
            "operation_type": self._names(first, operation_type),
            "group_name": pa.repeat(of.name, len(shown)),
            "group_size": pa.repeat(len(of.members), len(shown)),
            "group_ranks": self._lists(np.ones_like(arrived)),
            "group_seq": nullable(number, number >= 0),
            "bytes": of.slot("bytes")[shown][rows, first],
            "first_time": pa.array(came // 1000).cast(pa.timestamp("us")),
            "first_rank": self._members[first],
            "last_time": pa.array(went // 1000).cast(pa.timestamp("us")),
            "last_rank": self._members[last],
            "spread_ms": (went - came) / 1e6,
            "wait_ms": _values((went[:, None] - time) / 1e6, arrived),
            "duration_ms": self._duration(went, arrived),
            "arrived": self._lists(arrived),
            "missing": self._lists(~arrived & of.known[shown]),
            "seqs": _values(of.slot("seq")[shown], arrived),
            "unknown": self._lists(~arrived & ~of.known[shown]),
            "mismatch": self._mismatches(arrived),
            "state": self._state(arrived),
        }

    def _names(self, member: Ints, shown: Callable[[str], str]) -> list[str]:
        ids = self._all.slot("operation")[self._shown][np.arange(len(member)), member]
        names = {(m, i): self._string(m, i) for m, i in set(zip(member.tolist(), ids.tolist(), strict=True))}
        return [shown(names[each]) for each in zip(member.tolist(), ids.tolist(), strict=True)]

    def _string(self, member: int, id: int) -> str:
        rank = self._all.ranks[member]
        return "" if rank is None else rank.log.strings.get(id, "")

    def _lists(self, chosen: Bools) -> Any:
        """Of each operation the members that are chosen, as ranks of the job."""
        counts = chosen.sum(axis=1)
        flat = np.broadcast_to(self._members, chosen.shape)[chosen.astype(np.bool_)]
        return pa.ListArray.from_arrays(np.append(0, np.cumsum(counts)).astype(np.int32), pa.array(flat, pa.int32()))

    def _duration(self, went: Ints, arrived: Bools) -> Any:
        """From the last arrival to the last end, where all have ended."""
        of = self._all
        ended = of.time + self._done - self._start
        last = np.where(arrived, ended[self._shown], 0).max(axis=1, initial=0)
        seen = ~self._in_flight[self._shown] & (self._flags & (CAPTURED | END_UNKNOWN) == 0)
        whole = (arrived & seen).all(axis=1)
        return pa.array((last - went) / 1e6, mask=~whole)

    def _state(self, arrived: Bools) -> list[str]:
        flags = np.bitwise_or.reduce(np.where(arrived, self._flags, 0), axis=1)
        in_flight: Bools = np.logical_or.reduce(self._in_flight[self._shown], axis=1)
        return [STATES[each] for each in states(in_flight, flags).tolist()]

    def _mismatches(self, arrived: Bools) -> list[str | None]:
        told: list[str | None] = [None] * len(self._shown)
        names, tensors = self._coded("operation"), self._coded("tensor", lambda text: text.partition(" ")[0])
        sizes = self._all.slot("bytes")[self._shown]
        uneven = np.isin(names[0], [code for code, name in enumerate(names[1]) if name in _UNEVEN])
        for what, values, texts, comparable in (
            ("operation", names[0], [operation_type(name) for name in names[1]], arrived),
            ("bytes", sizes, None, arrived & ~uneven),
            ("dtype", tensors[0], tensors[1], arrived & ~uneven),
        ):
            low = np.where(comparable, values, np.iinfo(np.int64).max).min(axis=1)
            high = np.where(comparable, values, np.iinfo(np.int64).min).max(axis=1)
            for row in np.flatnonzero(low < high).tolist():
                told[row] = told[row] or f"{what}: {self._differing(values[row], comparable[row], texts)}"
        return told

    def _coded(self, slot: str, part: Callable[[str], str] = str) -> tuple[Ints, list[str]]:
        """A slot of log ids as numbers that mean the same on all ranks, and what each means."""
        ids, texts = self._all.slot(slot)[self._shown], dict[str, int]()
        codes = np.zeros_like(ids)
        for member in range(ids.shape[1]):
            known, inverse = np.unique(ids[:, member], return_inverse=True)
            of = [texts.setdefault(part(self._string(member, id)), len(texts)) for id in known.tolist()]
            codes[:, member] = np.array(of, np.int64)[inverse.reshape(-1)] if len(known) else codes[:, member]
        return codes, list(texts)

    def _differing(self, values: Ints, comparable: Bools, texts: Sequence[str] | None) -> str:
        """`all_reduce on ranks 0-2, broadcast on rank 3`."""
        by_value = grouped(zip(values[comparable].tolist(), self._members[comparable].tolist(), strict=True))
        return ", ".join(f"{texts[value] if texts else value} on {title(ranks)}" for value, ranks in by_value.items())


def _values(values: Any, valid: Bools) -> Any:
    """Lists as long as the group, NULL where not valid."""
    flat = nullable(values.reshape(-1), valid.reshape(-1))
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(offsets, flat)


_MEMBERS = "ranks of the job"

TABLE = Table(
    name="probe.collectives",
    doc="One row per collective operation over all ranks of its group: when each rank arrived, which have not, and "
    "where they disagree.  On every rank it has the same group_seq, or, where the backend's numbers do not mean the "
    "same on all ranks (gloo counts sends, too), is the n-th operation of its group in the step.  Times of different "
    "hosts are compared by their wall clocks.",
    columns=(
        Column("step", "BIGINT", "", "The job's step, on first_rank.", "boundaries between steps",
               joins="step everywhere"),
        Column("index_in_step", "BIGINT", "", "Number of operations of the group before it in this step.",
               "order of issue"),
        Column("operation_type", "VARCHAR", "", "As in python.nccl_trace, on first_rank.", "operation of c10d"),
        Column("group_name", "VARCHAR", "", "torch's name of the process group.", "process group",
               joins="group_name of python.nccl_trace"),
        Column("group_size", "INTEGER", "", "Ranks in the group.", "process group"),
        Column("group_ranks", "INTEGER[]", "", "The group's members, as ranks of the job.", "process group",
               joins="rank"),
        Column("group_seq", "BIGINT", "", "The backend's own sequence number on first_rank.", "backend",
               "The backend has none.", "group_seq of python.nccl_trace"),
        Column("bytes", "BIGINT", "B", "As in python.nccl_trace, on first_rank.", "tensors"),
        Column("first_time", "TIMESTAMP", "", "When the first rank issued it, UTC.", "start_ns of the ranks"),
        Column("first_rank", "INTEGER", "", "The rank that issued it first.", "start_ns of the ranks", joins="rank"),
        Column("last_time", "TIMESTAMP", "", "When the last rank that has arrived issued it, UTC.", "start_ns"),
        Column("last_rank", "INTEGER", "", "The rank that issued it last.", "start_ns of the ranks", joins="rank"),
        Column("spread_ms", "DOUBLE", "ms", "Time from the first arrival to the last.", "start_ns of the ranks"),
        Column("wait_ms", "DOUBLE[]", "ms", "How long each member waited for the last one, in the order of "
               "group_ranks; NULL for members that have not arrived.", "start_ns of the ranks"),
        Column("duration_ms", "DOUBLE", "ms",
               "Time from the last arrival to the last end: what the operation itself took.", "done_ns of the ranks",
               "Not all members have arrived, or their ends were not all seen."),
        Column("arrived", "INTEGER[]", "", "Members that have issued it.", _MEMBERS, joins="rank"),
        Column("missing", "INTEGER[]", "", "Members that certainly have not issued it.", _MEMBERS, joins="rank"),
        Column("seqs", "BIGINT[]", "", "Each member's row number for the operation, in the order of group_ranks; NULL "
               "for members that have not arrived.", "python.nccl_trace of the ranks",
               joins="seq of python.nccl_trace of the member"),
        Column("unknown", "INTEGER[]", "",
               "Members of which this is not known: they did not answer, or were attached or recorded only later.",
               _MEMBERS, joins="rank"),
        Column("mismatch", "VARCHAR", "",
               "What the ranks disagree on (operation, bytes or dtype), and which ranks have which value.",
               "python.nccl_trace of the ranks", "They agree."),
        Column("state", "VARCHAR", "", "in_flight if it is in flight on any rank, else failed, captured or "
               "end_unknown if it is so on any rank (see python.nccl_trace), else done.", "python.nccl_trace"),
    ),
    streams=(COLLECTIVES,),
    derive_job=derive,
    question="Which rank arrives last at collectives, how often, and how long do the others wait?",
    example="SELECT last_rank, COUNT(*) AS n, AVG(spread_ms) AS spread_ms FROM probe.collectives GROUP BY last_rank "
    "ORDER BY n DESC",
)  # fmt: skip
