"""python.nccl_trace: one row per collective or point-to-point operation, whatever the backend.

Made of the rows that the tap on c10d leaves; names of groups and tensors come from the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrow import choice, coded, nullable
from ..nesting import Bools, Ints
from ..operation_types import BUS_FACTORS, DONE, IN_FLIGHT, STATES, once, operation_type
from ..operation_types import FAILED as HAS_FAILED
from ..raw import Raw, Rows
from ..schema import COMMON, Column, Columns, Table
from ..streams import ASYNC_OP, COLLECTIVES, FAILED

_NOT_TOLD = ("send", "recv")  # c10d does not say whether the caller waits for these


def derive(raw: Raw) -> Columns:
    """Rows of the steps that may be seen, and every operation in flight."""
    every = raw.rows(COLLECTIVES)
    step = raw.timeline.step(every["start_ns"])
    seen = (raw.timeline.visible(step) & (step >= _first_whole(raw, every, step))) | (every["done_ns"] == 0)
    return _Operations(raw, Rows(every.slots, every.table[seen]), step[seen]).columns()


def _first_whole(raw: Raw, rows: Rows, step: Ints) -> int:
    """The first step whose rows are all still in the ring."""
    overwritten = len(rows) > 0 and int(rows["seq"][0]) > 1 and not raw.job.open_steps
    return int(step[0]) + 1 if overwritten else 0


class _Operations:
    """The visible operations of one rank; what several columns need is worked out here."""

    def __init__(self, raw: Raw, rows: Rows, step: Ints) -> None:
        self._raw, self._rows, self._step = raw, rows, step
        self._types = {id: operation_type(name) for id, name in raw.log.strings.items() if name.startswith("c10d::")}
        self._start, self._done = rows["start_ns"], rows["done_ns"]
        self._ended: Bools = self._done > 0
        self._failed: Bools = (rows["flags"] & FAILED) != 0
        self._ns: Ints = self._done - self._start

    def columns(self) -> Columns:
        rows, in_flight = self._rows, ~self._ended
        issued, number = rows["issued_ns"], rows["group_seq"]
        return {
            "start_ns": self._start,
            "step": self._step,
            "in_eval": self._raw.timeline.in_eval(self._start, rows["thread"]),
            "seq": rows["seq"],
            "operation_type": lambda: coded(rows["operation"], self._types),
            "backend": lambda: self._of_group("backend", pa.string()).dictionary_encode(),
            "group_name": lambda: self._of_group("name", pa.string()).dictionary_encode(),
            "group_size": lambda: self._of_group("size", pa.int32()),
            "group_rank": lambda: self._of_group("rank", pa.int32()),
            "group_ranks": lambda: self._of_group("ranks", pa.list_(pa.int32())),
            "group_seq": lambda: nullable(number, number >= 0),
            "peer": self._peer,
            "bytes": rows["bytes"],
            "dtype": lambda: coded(rows["tensor"], self._tensors(0)),
            "shape": lambda: coded(rows["tensor"], self._tensors(1)),
            "async_op": lambda: nullable((rows["flags"] & ASYNC_OP) != 0, ~self._is(*_NOT_TOLD)),
            "source": lambda: coded(rows["source"], self._raw.log.strings),
            "issue_us": lambda: nullable((issued - self._start) / 1e3, issued > 0),
            "duration_ms": lambda: nullable(self._ns / 1e6, self._ended),
            "age_ms": lambda: nullable(np.maximum(self._raw.now_ns - self._start, 0) / 1e6, in_flight),
            "algbw_gbps": lambda: self._bandwidth(once),
            "busbw_gbps": lambda: self._bandwidth(None),
            "state": lambda: choice(np.where(in_flight, IN_FLIGHT, np.where(self._failed, HAS_FAILED, DONE)), STATES),
        }

    def _is(self, *types: str) -> Bools:
        return np.isin(self._rows["operation"], [id for id, name in self._types.items() if name in types])

    def _of_group(self, what: str, arrow_type: Any) -> Any:
        known, inverse = np.unique(self._rows["group"], return_inverse=True)
        values = [self._raw.log.groups.get(id, {}).get(what) for id in known.tolist()]
        return pa.array(values, arrow_type).take(pa.array(inverse.reshape(-1)))

    def _tensors(self, part: int) -> dict[int, str]:
        """dtype (0) or shape (1) of the tensors by log id, out of "float32 [8, 16] +1"."""
        ids = np.unique(self._rows["tensor"]).tolist()
        texts = {id: self._raw.log.strings[id] for id in ids if id in self._raw.log.strings}
        return {id: text.partition(" ")[2 * part] for id, text in texts.items()}

    def _peer(self) -> Any:
        """The rank in the job of a rank in the group."""
        pairs = np.stack([self._rows["group"], self._rows["peer"]], axis=1)
        known, inverse = np.unique(pairs, axis=0, return_inverse=True)
        peers = [self._rank(group, peer) for group, peer in known.tolist()]
        return pa.array(peers, pa.int32()).take(pa.array(inverse.reshape(-1)))

    def _rank(self, group: int, peer: int) -> int | None:
        ranks = self._raw.log.groups.get(group, {}).get("ranks")
        if not ranks:
            return None
        return int(ranks[peer]) if 0 <= peer < len(ranks) else None

    def _bandwidth(self, factor: Callable[[Any], Any] | None) -> Any:
        """Bytes a nanosecond; factor None: the one of each operation."""
        size = np.maximum(np.asarray(self._of_group("size", pa.int64()).fill_null(1)), 1)
        factors = np.zeros(len(size))
        for name, of_type in BUS_FACTORS.items():
            chosen = self._is(name)
            factors[chosen] = (factor or of_type)(size[chosen])
        valid = self._ended & ~self._failed & (self._ns > 0) & self._is(*BUS_FACTORS)
        return nullable(self._rows["bytes"] / np.maximum(self._ns, 1) * factors, valid)


_GROUP = "process group"
_UNKNOWN_GROUP = "A group that the agent could not look into."
_NO_TENSOR = "Barriers."

TABLE = Table(
    name="python.nccl_trace",
    doc="One row per collective or point-to-point operation (NCCL, gloo, any backend), from its issue on; "
    "one that never ends stays in_flight.  Operations that overlap add up to work, not to wall time.",
    columns=(
        *COMMON,
        Column("seq", "BIGINT", "", "Order of issue in this process.", "number of the row"),
        Column(
            "operation_type",
            "VARCHAR",
            "",
            "all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, all_to_all, "
            "barrier, send or recv; coalesced operations go by the same names.",
            "operation of c10d",
            joins="operation_type of other ranks",
        ),
        Column("backend", "VARCHAR", "", "gloo, nccl, …", _GROUP, _UNKNOWN_GROUP),
        Column(
            "group_name",
            "VARCHAR",
            "",
            "torch's name of the process group, the same on all its ranks.",
            _GROUP,
            _UNKNOWN_GROUP,
            "group_name of other ranks",
        ),
        Column("group_size", "INTEGER", "", "Ranks in the group.", _GROUP, _UNKNOWN_GROUP),
        Column("group_rank", "INTEGER", "", "This process's rank in the group.", _GROUP, _UNKNOWN_GROUP),
        Column(
            "group_ranks",
            "INTEGER[]",
            "",
            "The group's members as ranks of the job.",
            _GROUP,
            "A group made without torch.distributed.",
            "rank",
        ),
        Column(
            "group_seq",
            "BIGINT",
            "",
            "The backend's own sequence number after the operation was issued; gloo counts point-to-point "
            "operations and monitored barriers in it too, on the ranks that take part.",
            "backend",
            "send, recv, monitored barriers; blocked or failed while it was issued.",
            "group_seq of other ranks, with group_name",
        ),
        Column(
            "peer",
            "INTEGER",
            "",
            "The other rank of send and recv, the root of broadcast, reduce, gather and scatter; a rank of the job.",
            "arguments",
            "Operations of all with all; recv from any rank.",
            "rank",
        ),
        Column(
            "bytes",
            "BIGINT",
            "B",
            "Size as nccl-tests counts it: the buffer of all_reduce, broadcast and reduce, the whole "
            "gathered or scattered buffer, the input of reduce_scatter and all_to_all; 0 for barriers.",
            "tensors",
        ),
        Column("dtype", "VARCHAR", "", "Data type of the first tensor.", "tensors", _NO_TENSOR),
        Column(
            "shape",
            "VARCHAR",
            "",
            "Shape of the first tensor that this rank gives (of a receiver: gets), and how many more there are.",
            "tensors",
            _NO_TENSOR,
        ),
        Column(
            "async_op",
            "BOOLEAN",
            "",
            "Issued to be waited for later, as DDP and functional collectives do.",
            "arguments",
            "send and recv, where c10d does not tell.",
        ),
        Column(
            "source",
            "VARCHAR",
            "",
            "Who issued it: ddp (its reducer, hooks and buffers), fsdp, functional (functional collectives, DTensor, "
            "compiled code), zero, pipelining, … (the part of torch.distributed), or user.",
            "Python frames around it",
        ),
        Column(
            "issue_us",
            "DOUBLE",
            "µs",
            "Time the host took to issue it.",
            "host's clock",
            "Blocked or failed while it was issued.",
        ),
        Column(
            "duration_ms",
            "DOUBLE",
            "ms",
            "From issue to completion; on NCCL the time on the device.",
            "future of the operation, or its own events",
            "In flight.",
        ),
        Column(
            "age_ms",
            "DOUBLE",
            "ms",
            "How long one in flight has been going on.",
            "clock of the snapshot",
            "Not in flight.",
        ),
        Column(
            "algbw_gbps",
            "DOUBLE",
            "GB/s",
            "bytes / duration, as nccl-tests defines it (10^9 bytes).",
            "bytes and duration_ms",
            "In flight, failed, barriers.",
        ),
        Column(
            "busbw_gbps",
            "DOUBLE",
            "GB/s",
            "algbw × what each link carries of it: 2 (n-1)/n for all_reduce, 1 for broadcast, reduce, send "
            "and recv, else (n-1)/n.",
            "algbw_gbps and group_size",
            "As algbw_gbps.",
        ),
        Column("state", "VARCHAR", "", "done, in_flight or failed.", "future of the operation"),
    ),
    streams=(COLLECTIVES,),
    derive=derive,
    example="SELECT step, operation_type, COUNT(*) AS n, SUM(bytes) / 1e6 AS mb, AVG(busbw_gbps) AS busbw "
    "FROM python.nccl_trace GROUP BY ALL ORDER BY step DESC LIMIT 10",
)
