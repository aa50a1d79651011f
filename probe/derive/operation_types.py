"""Operations of c10d by the names that users know, and the share of their bytes that each link carries.

Read by the tables of collectives.  Invariant: an unknown operation keeps c10d's own name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

STATES = ("in_flight", "done", "failed")
IN_FLIGHT, DONE, FAILED = range(3)  # of STATES

# operations of c10d, as the tap notes them -> operation_type
OPERATION_TYPES = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allgather_": "all_gather",
    "c10d::allgather_coalesced_": "all_gather",
    "c10d::allgather_into_tensor_coalesced_": "all_gather",
    "c10d::allreduce_": "all_reduce",
    "c10d::allreduce_coalesced_": "all_reduce",
    "c10d::alltoall_": "all_to_all",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::barrier": "barrier",
    "c10d::broadcast_": "broadcast",
    "c10d::gather_": "gather",
    "c10d::monitored_barrier_": "barrier",
    "c10d::recv_": "recv",
    "c10d::recv_any_source_": "recv",
    "c10d::reduce_": "reduce",
    "c10d::reduce_scatter_": "reduce_scatter",
    "c10d::reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "c10d::scatter_": "scatter",
    "c10d::send": "send",
}


def once(size: Any) -> Any:
    """The bus factor 1, for groups of each size."""
    return np.ones_like(size, np.float64)


def _bus_factor(times: int) -> Callable[[Any], Any]:
    return lambda size: times * (size - 1) / size


# busbw / algbw for a group of `size` ranks, as nccl-tests has it (doc/PERFORMANCE.md and the *GetBw functions)
BUS_FACTORS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("broadcast", "recv", "reduce", "send"), once),
    **dict.fromkeys(("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter"), _bus_factor(1)),
    "all_reduce": _bus_factor(2),
}


def operation_type(operation: str) -> str:
    """all_reduce for c10d::allreduce_; an unknown operation keeps its own name."""
    return OPERATION_TYPES.get(operation, operation.partition("::")[2].strip("_"))
