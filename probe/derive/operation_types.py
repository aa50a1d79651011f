"""Operations of c10d by the names that users know, and the share of their bytes that each link carries.

Read by what derives collectives.  Invariant: an unknown operation keeps its own name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import streams
from ..arrays.integers import Bools, Ints

STATES = ("in_flight", "done", "failed", "captured", "end_unknown")
IN_FLIGHT, DONE, FAILED, CAPTURED, END_UNKNOWN = range(5)  # of STATES

_VARIANT = re.compile(r"^_+|(_base|_coalesced|_into_tensor|_tensor|_single|_any_source|_)+$")
_NAMES = {"allgather": "all_gather", "allreduce": "all_reduce", "alltoall": "all_to_all", "all_to_allv": "all_to_all"}


def states(in_flight: Bools, flags: Ints) -> Ints:
    """Of operations with these flags, as places in STATES."""
    told = np.where(flags & streams.CAPTURED, CAPTURED, np.where(flags & streams.END_UNKNOWN, END_UNKNOWN, DONE))
    found: Ints = np.where(in_flight, IN_FLIGHT, np.where(flags & streams.FAILED, FAILED, told))
    return found


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


def operation_type(name: str) -> str:
    """all_gather for c10d::_allgather_base_, as the tap notes it, and for _all_gather_base, as torch's recorder does;
    send for `send 0->1`; an unknown name stays as it is."""
    plain = name.rpartition("::")[2].partition(" ")[0]
    if plain.rstrip("_").endswith("barrier"):
        return "barrier"
    plain = _VARIANT.sub("", plain)
    return _NAMES.get(plain, plain)
