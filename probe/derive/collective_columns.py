"""Operations of one rank as its tap recorded them, as columns of python.nccl_trace.

Called by that table.  Invariant: names of groups and tensors come from the log; a group that the agent could not
inspect is NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrays.arrow import choice, coded, nullable
from ..arrays.integers import Bools, Ints, distinct
from ..schema import Columns
from ..snapshot.rows import Rows
from ..streams import ASYNC_OP, ASYNC_UNKNOWN, CAPTURED, END_UNKNOWN, FAILED
from .operation_types import BUS_FACTORS, STATES, once, operation_type, states
from .partition import Partition


class CollectiveColumns:
    """Some operations of one rank, and what several of their columns need."""

    def __init__(self, part: Partition, rows: Rows, step: Ints) -> None:
        self._part, self._rows, self._step = part, rows, step
        self._types = {id: operation_type(name) for id, name in part.log.strings.items() if name.startswith("c10d::")}
        self._start, self._done = rows["start_ns"], rows["done_ns"]
        unseen = CAPTURED | END_UNKNOWN
        self._in_flight: Bools = self._done == 0
        self._timed: Bools = ~self._in_flight & (rows["flags"] & unseen == 0)
        self._failed: Bools = (rows["flags"] & FAILED) != 0
        self._ns: Ints = self._done - self._start

    def columns(self) -> Columns:
        rows, in_flight = self._rows, self._in_flight
        issued, number = rows["issued_ns"], rows["group_seq"]
        return {
            "start_ns": self._start,
            "step": self._step,
            "from_flight_recorder": np.zeros(len(rows), np.bool_),
            "in_eval": self._part.timeline.in_eval(self._start, rows["thread"]),
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
            "async_op": lambda: nullable((rows["flags"] & ASYNC_OP) != 0, (rows["flags"] & ASYNC_UNKNOWN) == 0),
            "source": lambda: coded(rows["source"], self._part.log.strings),
            "issue_us": lambda: nullable((issued - self._start) / 1e3, issued > 0),
            "duration_ms": lambda: nullable(self._ns / 1e6, self._timed),
            "age_ms": lambda: nullable(np.maximum(self._part.rank.now_ns - self._start, 0) / 1e6, in_flight),
            "algbw_gbps": lambda: self._bandwidth(once),
            "busbw_gbps": lambda: self._bandwidth(None),
            "state": lambda: choice(states(in_flight, rows["flags"]), STATES),
        }

    def _is(self, *types: str) -> Bools:
        return np.isin(self._rows["operation"], [id for id, name in self._types.items() if name in types])

    def _of_group(self, what: str, arrow_type: Any) -> Any:
        known, inverse = np.unique(self._rows["group"], return_inverse=True)
        values = [self._part.log.groups.get(id, {}).get(what) for id in known.tolist()]
        return pa.array(values, arrow_type).take(pa.array(inverse.reshape(-1)))

    def _tensors(self, part: int) -> dict[int, str]:
        """dtype (0) or shape (1) of the tensors by log id, out of "float32 [8, 16] +1"."""
        ids = distinct(self._rows["tensor"]).tolist()
        texts = {id: self._part.log.strings[id] for id in ids if id in self._part.log.strings}
        return {id: text.partition(" ")[2 * part] for id, text in texts.items()}

    def _peer(self) -> Any:
        """Ranks of the job, from ranks of the group."""
        pairs = np.stack([self._rows["group"], self._rows["peer"]], axis=1)
        known, inverse = np.unique(pairs, axis=0, return_inverse=True)
        groups = [self._part.log.groups.get(group, {}).get("ranks") or () for group in known[:, 0].tolist()]
        peers = [
            ranks[peer] if 0 <= peer < len(ranks) else None
            for ranks, peer in zip(groups, known[:, 1].tolist(), strict=True)
        ]
        return pa.array(peers, pa.int32()).take(pa.array(inverse.reshape(-1)))

    def _bandwidth(self, factor: Callable[[Any], Any] | None) -> Any:
        """Bytes per nanosecond; factor None: the bus factor of each operation."""
        size = np.maximum(np.asarray(self._of_group("size", pa.int64()).fill_null(1)), 1)
        factors = np.zeros(len(size))
        for name, of_type in BUS_FACTORS.items():
            chosen = self._is(name)
            factors[chosen] = (factor or of_type)(size[chosen])
        valid = self._timed & ~self._failed & (self._ns > 0) & self._is(*BUS_FACTORS)
        return nullable(self._rows["bytes"] / np.maximum(self._ns, 1) * factors, valid)
