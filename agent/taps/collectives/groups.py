"""What is known of each process group: its log record, its members, and how its backend tells things.

Asked by the tap of collectives on every call.  The one invariant: no group is kept alive by us, and none
of this costs a message to another rank.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..untested_devices import check_backends

Log = Callable[[dict[str, Any]], int]  # a LOG_GROUP record's payload -> its id


@dataclass
class Group:
    """One group and, where it has several, one of its backends."""

    id: int  # of its LOG_GROUP record
    name: str
    size: int
    ranks: tuple[int, ...] | None  # of the job, in the group's order; None where torch.distributed does not know it
    futures: bool  # its works tell when they are done
    timed: bool  # its works know how long the device took
    device: Any  # whose backend this is, None for the only one
    numbers: bool

    def number(self, process_group: Any) -> int:
        """The backend's sequence number, -1 if it keeps none."""
        if not self.numbers:
            return -1
        counter = process_group if self.device is None else process_group._get_backend(self.device)
        return int(counter._get_sequence_number_for_group())


@dataclass
class _Known:
    process_group: weakref.ref[Any]  # an id may come again for another group
    only: Group | None
    by_device: dict[str, Group]


class Groups:
    """of() on any thread; about 200 ns once a group is known."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[int, _Known] = {}

    def of(self, process_group: Any, tensors: Sequence[Any]) -> Group:
        """The group, seen from the backend that serves these tensors.  Raises Untested, having done nothing yet."""
        key = id(process_group)
        known = self._known.get(key)
        if known is None or known.process_group() is not process_group:
            known = self._known[key] = self._meet(process_group, lambda _: self._known.pop(key, None))
        if known.only is not None:
            return known.only
        device = tensors[0].device
        group = known.by_device.get(device.type)
        if group is None:
            group = known.by_device[device.type] = self._learn(process_group, device)
        return group

    def forget(self) -> None:
        """At the end: each has a callback of ours, which holds this, and the log's end of it its owner."""
        self._known.clear()
        self._log = _untold

    def _meet(self, process_group: Any, forget: Callable[[Any], Any]) -> _Known:
        backends = [process_group._get_backend(device) for device in process_group._device_types]
        check_backends(str(backend._get_backend_name()) for backend in backends)
        only = self._learn(process_group, None) if len(set(map(id, backends))) <= 1 else None
        return _Known(weakref.ref(process_group, forget), only, {})

    def _learn(self, process_group: Any, device: Any) -> Group:
        owner = process_group if device is None else process_group._get_backend(device)
        backend = str(owner._get_backend_name())
        ranks, size, name = ranks_of(process_group), int(process_group.size()), str(process_group.group_name)
        record = {
            "name": name,
            "backend": backend,
            "size": size,
            "rank": int(process_group.rank()),
            "ranks": None if ranks is None else list(ranks),
        }
        return Group(
            id=self._log(record),
            name=name,
            size=size,
            ranks=ranks,
            futures=backend == "gloo",  # NCCL's futures would put our callback on the streams
            timed=backend == "nccl" and _timing_enabled(process_group),
            device=device,
            numbers=_keeps_numbers(owner),
        )


def _untold(record: dict[str, Any]) -> int:
    return 0


def ranks_of(process_group: Any) -> tuple[int, ...] | None:
    """Its members as ranks of the job, in the group's order; None if only torch's C++ side knows it."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    known = distributed._world.pg_group_ranks.get(process_group) if distributed is not None else None
    if known is None:
        return None
    return tuple(sorted(known, key=known.__getitem__))


def _keeps_numbers(owner: Any) -> bool:
    try:
        owner._get_sequence_number_for_group()
    except RuntimeError:
        return False
    return True


def _timing_enabled(process_group: Any) -> bool:
    """Have the backend record events round every operation from now on, as TORCH_NCCL_ENABLE_TIMING would."""
    try:
        process_group._enable_collectives_timing()
    except (AttributeError, RuntimeError):
        return False
    return True
