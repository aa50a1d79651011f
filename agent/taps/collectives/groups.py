"""What the tap knows about each process group: its log record, its members, and what its backend can report.

The tap of collectives looks a group up on every call.
Invariant: the tap keeps no group alive and sends no message to another rank.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....streams import LOG_GROUP
from ...storage.log import Log
from ..device_policy import LeftAlone, check_backends

# The wrapper around each backend in this mode passes that call on since 2.12.
_UNTIMED = "a process group uses nccl and does not time it, as with TORCH_DISTRIBUTED_DEBUG=DETAIL before torch 2.12"


@dataclass
class Group:
    """One group and, if it has several backends, one of them."""

    id: int  # of the group's LOG_GROUP record
    name: str
    size: int
    ranks: tuple[int, ...] | None  # of the job, in the group's order; None if torch.distributed does not know them
    futures: bool  # its works have futures that report completion
    timed: bool  # its works report how long the device took
    device: Any  # the device that this backend serves; None for the only backend
    has_numbers: bool  # the backend keeps sequence numbers

    def number(self, process_group: Any) -> int:
        """The backend's sequence number, -1 if it keeps none."""
        if not self.has_numbers:
            return -1
        counter = process_group if self.device is None else process_group._get_backend(self.device)
        return int(counter._get_sequence_number_for_group())


@dataclass
class _Known:
    process_group: weakref.ref[Any]  # Python may reuse the id for another group
    only: Group | None
    by_device: dict[str, Group]


class Groups:
    """of() runs on any thread and takes about 200 ns once a group is known."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[int, _Known] = {}
        self._ids: dict[str, int] = {}  # a group's record -> its id, also after its Python object was recreated

    def of(self, process_group: Any, tensors: Sequence[Any]) -> Group:
        """The group, with the backend that serves these tensors.  Raises LeftAlone before it has done anything."""
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
        """Break the reference cycles at the end: each weakref's callback holds this."""
        self._known.clear()

    def _meet(self, process_group: Any, forget: Callable[[Any], Any]) -> _Known:
        backends = [process_group._get_backend(device) for device in process_group._device_types]
        check_backends(str(backend._get_backend_name()) for backend in backends)
        only = self._learn(process_group, None) if len(set(map(id, backends))) <= 1 else None
        return _Known(weakref.ref(process_group, forget), only, {})

    def _learn(self, process_group: Any, device: Any) -> Group:
        owner = process_group if device is None else process_group._get_backend(device)
        backend, name = str(owner._get_backend_name()), str(process_group.group_name)
        timed = backend == "nccl"
        if timed:
            _enable_timing(process_group)
        ranks, rank, size = ranks_of(process_group), int(process_group.rank()), int(process_group.size())
        record = {"name": name, "backend": backend, "size": size, "rank": rank, "ranks": ranks and list(ranks)}
        key = repr(record)
        if key not in self._ids:
            self._ids[key] = self._log.next_id()
            self._log.put(LOG_GROUP, self._ids[key], record)
        return Group(
            id=self._ids[key],
            name=name,
            size=size,
            ranks=ranks,
            futures=backend == "gloo",  # NCCL's futures would put our callback on the streams
            timed=timed,
            device=device,
            has_numbers=_succeeds(lambda: owner._get_sequence_number_for_group()),
        )


def ranks_of(process_group: Any) -> tuple[int, ...] | None:
    """The members as ranks of the job, in the group's order; None if only torch's C++ side knows the group."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    known = distributed._world.pg_group_ranks.get(process_group) if distributed is not None else None
    if known is None:
        return None
    return tuple(sorted(known, key=known.__getitem__))


def _enable_timing(process_group: Any) -> None:
    """From now on, as with TORCH_NCCL_ENABLE_TIMING, the backend records events around every operation.

    Raises LeftAlone if it cannot: only the Work could then tell the end, and whoever keeps or asks it breaks captures.
    """
    if not _succeeds(lambda: process_group._enable_collectives_timing()):
        raise LeftAlone(_UNTIMED)


def _succeeds(call: Callable[[], Any]) -> bool:
    try:
        call()
    except (AttributeError, RuntimeError):
        return False
    return True
