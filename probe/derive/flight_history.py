"""Operations from before the attach, out of torch's own Flight Recorder, as rows of python.nccl_trace.

Called by that table.  Invariant: what the recorder does not know is NULL, and once the tap is installed it is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .. import protocol as wire
from ..schema import Columns
from ..snapshot.flight_recorder import has_ended, is_in_flight, told_of
from ..snapshot.source import Rank
from .operation_types import BUS_FACTORS, DONE, IN_FLIGHT, STATES, once

Told = Mapping[str, Any]  # one entry as torch writes it

# c10's name of a type -> torch's, and how many bytes one takes
_DTYPES = {
    "Bool": ("bool", 1), "Byte": ("uint8", 1), "Char": ("int8", 1), "Short": ("int16", 2), "Int": ("int32", 4),
    "Long": ("int64", 8), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2), "Float": ("float32", 4),
    "Double": ("float64", 8), "ComplexFloat": ("complex64", 8), "ComplexDouble": ("complex128", 16),
    "Float8_e4m3fn": ("float8_e4m3fn", 1), "Float8_e5m2": ("float8_e5m2", 1),
}  # fmt: skip
_VARIANT = re.compile(r"^_+|(_base|_coalesced|_into_tensor|_tensor|_single)+$")
_NAMES = {"allgather": "all_gather", "allreduce": "all_reduce", "alltoall": "all_to_all", "all_to_allv": "all_to_all"}
_SHARES = {"all_gather": "input", "gather": "input", "scatter": "output"}  # what is 1/size of the whole
_PEER = re.compile(r"(?:->|<-)(\d+)$")


def history_of(rank: Rank) -> list[Told]:
    """What this rank issued, oldest first, as long as its tap waits for a boundary to be installed: in a job that was
    hanging before the attach.  A job that goes on is not asked, since a dump would hold it up."""
    if not rank.facts.distributed or rank.facts.collectives_ns is not None or rank.facts.count:
        return []
    return told_of(rank.snapshot.ask(wire.FLIGHT).get(rank, {}).get("texts", ()))


def columns(rank: Rank, told: Sequence[Told]) -> Columns:
    """Those columns of python.nccl_trace that the recorder knows."""
    groups = rank.snapshot.ask(wire.FLIGHT).get(rank, {}).get("groups", {}) if told else {}
    rows = [_Operation(rank, each, groups.get(each["process_group"][0]) or ()) for each in told]
    state = [DONE if row.ended else IN_FLIGHT if row.in_flight else None for row in rows]
    return {
        "start_ns": np.array([row.start_ns for row in rows], np.int64),
        "in_eval": np.zeros(len(rows), np.bool_),
        "from_flight_recorder": np.ones(len(rows), np.bool_),
        "operation_type": pa.array([row.type for row in rows], pa.string()),
        "backend": pa.array([row.backend for row in rows], pa.string()),
        "group_name": pa.array([row.group for row in rows], pa.string()),
        "group_size": pa.array([len(row.members) or None for row in rows], pa.int32()),
        "group_rank": pa.array([row.group_rank for row in rows], pa.int32()),
        "group_ranks": pa.array([row.members or None for row in rows], pa.list_(pa.int32())),
        "group_seq": pa.array([row.number for row in rows], pa.int64()),
        "peer": pa.array([row.peer for row in rows], pa.int32()),
        "bytes": pa.array([row.bytes for row in rows], pa.int64()),
        "dtype": pa.array([row.dtype for row in rows], pa.string()),
        "shape": pa.array([row.shape for row in rows], pa.string()),
        "duration_ms": pa.array([row.duration_ms for row in rows], pa.float64()),
        "age_ms": pa.array([row.age_ms for row in rows], pa.float64()),
        "algbw_gbps": pa.array([row.bandwidth(False) for row in rows], pa.float64()),
        "busbw_gbps": pa.array([row.bandwidth(True) for row in rows], pa.float64()),
        "state": pa.DictionaryArray.from_arrays(pa.array(state, pa.int32()), pa.array(STATES)),
    }


class _Operation:
    """One entry in terms of python.nccl_trace; None for what it does not have."""

    def __init__(self, rank: Rank, told: Told, members: Sequence[int]) -> None:
        self._told, self.members = told, members
        self.backend, _, self._name = str(told["profiling_name"]).partition(":")
        self.type = operation_type(self._name)
        self.group = str(told["process_group"][0])
        self.group_rank = self.members.index(rank.rank) if rank.rank in self.members else None
        self.start_ns = int(told["time_created_ns"]) - rank.facts.wall_offset_ns
        self.ended, self.in_flight = has_ended(told), is_in_flight(told)
        self.age_ms = max(0, rank.now_ns - self.start_ns) / 1e6 if self.in_flight else None
        self.number = None if told.get("is_p2p") else int(told["collective_seq_id"])
        self.duration_ms = told.get("duration_ms") if self.ended else None
        self.bytes = self._bytes()

    @property
    def peer(self) -> int | None:
        found = _PEER.search(self._name)
        return self.members[int(found[1])] if found and int(found[1]) < len(self.members) else None

    @property
    def dtype(self) -> str | None:
        types = self._told.get(f"{self._given}_dtypes")
        return _DTYPES.get(types[0], (str(types[0]), 0))[0] if types else None

    @property
    def shape(self) -> str | None:
        sizes = self._told.get(f"{self._given}_sizes")
        more = f" +{len(sizes) - 1}" if sizes and len(sizes) > 1 else ""
        return f"{sizes[0]}{more}" if sizes else None

    @property
    def _given(self) -> str:
        return "output" if self.type in ("recv", "scatter") else "input"

    def _bytes(self) -> int | None:
        if self.type == "barrier":
            return 0
        side = _SHARES.get(self.type, self._given)
        sizes, types = self._told.get(f"{side}_sizes") or (), self._told.get(f"{side}_dtypes") or ()
        known = [_DTYPES.get(each, ("", 0))[1] for each in types]
        if not sizes or len(sizes) != len(types) or not all(known) or self.type not in BUS_FACTORS:
            return None
        if self.type not in _SHARES:
            return sum(_elements(size) * each for size, each in zip(sizes, known, strict=True))
        whole = sum(_elements(size) * each for size, each in zip(sizes, known, strict=True)) * len(self.members)
        return whole or None

    def bandwidth(self, of_links: bool) -> float | None:
        """Bytes per nanosecond, as nccl-tests defines it."""
        if not self.duration_ms or self.bytes is None or self.type not in BUS_FACTORS or not self.members:
            return None
        factor = BUS_FACTORS[self.type] if of_links else once
        return float(self.bytes / (self.duration_ms * 1e6) * factor(np.array([len(self.members)]))[0])


def operation_type(name: str) -> str:
    """all_gather for _all_gather_base, send for `send 0->1`; an unknown name stays as it is."""
    if name.endswith("barrier"):
        return "barrier"
    plain = _VARIANT.sub("", name.partition(" ")[0])
    return _NAMES.get(plain, plain)


def _elements(size: Sequence[int]) -> int:
    return int(np.prod(size, dtype=np.int64))
