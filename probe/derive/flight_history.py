"""Operations from before the attach, out of torch's own Flight Recorder, as rows of python.nccl_trace.

Called by that table.  Invariant: what the recorder does not know is NULL, and once the tap is installed it is not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .. import protocol as wire
from ..schema import Columns
from ..snapshot.flight_recorder import dumped_entries, has_ended, is_in_flight
from ..snapshot.source import Rank
from .operation_types import BUS_FACTORS, DONE, IN_FLIGHT, STATES, once, operation_type

DumpedEntry = Mapping[str, Any]  # one entry as torch writes it

# c10's name of a type -> torch's, and how many bytes one takes
_DTYPES = {
    "Bool": ("bool", 1), "Byte": ("uint8", 1), "Char": ("int8", 1), "Short": ("int16", 2), "Int": ("int32", 4),
    "Long": ("int64", 8), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2), "Float": ("float32", 4),
    "Double": ("float64", 8), "ComplexFloat": ("complex64", 8), "ComplexDouble": ("complex128", 16),
    "Float8_e4m3fn": ("float8_e4m3fn", 1), "Float8_e5m2": ("float8_e5m2", 1),
}  # fmt: skip
_SHARES = {"all_gather": "input", "gather": "input", "scatter": "output"}  # what is 1/size of the whole
_PEER = re.compile(r"(?:->|<-)(\d+)$")
_COLUMNS = {  # what an _Operation has under the same names
    pa.string(): ("operation_type", "backend", "group_name", "dtype", "shape"),
    pa.int32(): ("group_size", "group_rank", "peer"),
    pa.int64(): ("group_seq", "bytes"),
    pa.float64(): ("duration_ms", "age_ms", "algbw_gbps", "busbw_gbps"),
    pa.list_(pa.int32()): ("group_ranks",),
}


def history_of(rank: Rank) -> list[DumpedEntry]:
    """What this rank issued, oldest first, as long as its tap waits for a boundary to be installed: in a job that was
    hanging before the attach.  A job that goes on is not asked, since a dump would hold it up."""
    if not rank.facts.distributed or rank.facts.collectives_ns is not None or rank.facts.count:
        return []
    return dumped_entries(rank.snapshot.ask(wire.FLIGHT).get(rank, {}).get("texts", ()))


def columns(rank: Rank, entries: Sequence[DumpedEntry]) -> Columns:
    """Those columns of python.nccl_trace that the recorder knows."""
    groups = rank.snapshot.ask(wire.FLIGHT).get(rank, {}).get("groups", {}) if entries else {}
    rows = [_Operation(rank, each, groups.get(each["process_group"][0]) or ()) for each in entries]
    state = [DONE if row.ended else IN_FLIGHT if row.in_flight else None for row in rows]
    return {
        "start_ns": np.array([row.start_ns for row in rows], np.int64),
        "in_eval": np.zeros(len(rows), np.bool_),
        "from_flight_recorder": np.ones(len(rows), np.bool_),
        "state": pa.DictionaryArray.from_arrays(pa.array(state, pa.int32()), pa.array(STATES)),
        **{
            name: pa.array([getattr(row, name) for row in rows], arrow_type)
            for arrow_type, names in _COLUMNS.items()
            for name in names
        },
    }


class _Operation:
    """One entry in terms of python.nccl_trace; None for what it does not have."""

    def __init__(self, rank: Rank, entry: DumpedEntry, members: Sequence[int]) -> None:
        self._entry, self._members = entry, members
        self.backend, _, self._name = str(entry["profiling_name"]).partition(":")
        self.operation_type = operation_type(self._name)
        self.group_name = str(entry["process_group"][0])
        self.group_ranks, self.group_size = members or None, len(members) or None
        self.group_rank = members.index(rank.rank) if rank.rank in members else None
        self.group_seq = None if entry.get("is_p2p") else int(entry["collective_seq_id"])
        created_ns = int(entry["time_created_ns"]) - rank.facts.wall_correction_ns
        self.start_ns = created_ns - rank.facts.wall_offset_ns
        self.ended, self.in_flight = has_ended(entry), is_in_flight(entry)
        self.age_ms = max(0, rank.now_ns - self.start_ns) / 1e6 if self.in_flight else None
        self.duration_ms = entry.get("duration_ms") if self.ended else None
        self.bytes = self._bytes()
        factor = BUS_FACTORS.get(self.operation_type)
        self.algbw_gbps, self.busbw_gbps = self._bandwidth(factor and once), self._bandwidth(factor)

    @property
    def peer(self) -> int | None:
        found = _PEER.search(self._name)
        return self._members[int(found[1])] if found and int(found[1]) < len(self._members) else None

    @property
    def dtype(self) -> str | None:
        types = self._entry.get(f"{self._given}_dtypes")
        return _DTYPES.get(types[0], (str(types[0]), 0))[0] if types else None

    @property
    def shape(self) -> str | None:
        sizes = self._entry.get(f"{self._given}_sizes")
        more = f" +{len(sizes) - 1}" if sizes and len(sizes) > 1 else ""
        return f"{sizes[0]}{more}" if sizes else None

    @property
    def _given(self) -> str:
        return "output" if self.operation_type in ("recv", "scatter") else "input"

    def _bytes(self) -> int | None:
        if self.operation_type == "barrier":
            return 0
        side = _SHARES.get(self.operation_type, self._given)
        sizes, types = self._entry.get(f"{side}_sizes") or (), self._entry.get(f"{side}_dtypes") or ()
        known = [_DTYPES.get(each, ("", 0))[1] for each in types]
        if not sizes or len(sizes) != len(types) or not all(known) or self.operation_type not in BUS_FACTORS:
            return None
        total = sum(int(np.prod(size, dtype=np.int64)) * each for size, each in zip(sizes, known, strict=True))
        return total if self.operation_type not in _SHARES else total * len(self._members) or None

    def _bandwidth(self, factor: Callable[[Any], Any] | None) -> float | None:
        """Bytes per nanosecond, as nccl-tests defines it."""
        if not self.duration_ms or self.bytes is None or factor is None or not self._members:
            return None
        return float(self.bytes / (self.duration_ms * 1e6) * factor(np.array([len(self._members)]))[0])
