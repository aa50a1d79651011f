"""What the caching allocators of devices have given out, block by block: it is more than Python's tensors show.

Called by look.py, when all tensors are found.  Invariant: the job's own history of its allocator is left alone, for a
snapshot would enter it, and copy all of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ... import protocol as wire
from ..inspect.classes import loaded
from ..torch_state import cuda_may_be_asked
from .places import NOWHERE, Places
from .storages import Storage

_MOST = 20_000  # some 2 µs each
_WITHOUT_TENSOR = "held by C++ only, without a tensor"


def allocated_bytes() -> dict[str, int]:
    """What the caching allocator of each device in use has given out; none where the job has an allocator of its own,
    which does not tell."""
    if not cuda_may_be_asked():
        return {}
    torch, found = loaded("torch"), dict[str, int]()
    with suppress(RuntimeError):
        for index in range(torch.cuda.device_count()):
            found[f"cuda:{index}"] = int(torch._C._cuda_memoryStats(index)["allocated_bytes"]["all"]["current"])
    return {device: allocated for device, allocated in found.items() if allocated}


def claim_blocks(found: dict[int, Storage], places: Places) -> None:
    """A row more for each block in which no storage lies: a workspace of cuBLAS, what a graph holds unread."""
    keys = sorted(found)
    for device, address, size, requested in _given_out():
        at = bisect_left(keys, address)
        if at == len(keys) or keys[at] >= address + size:
            row = found[address] = Storage(address, wire.OTHER, None, "")
            row.device, row.bytes = f"cuda:{device}", requested
            row.place = places.add(NOWHERE, _WITHOUT_TENSOR)


def _given_out() -> Iterator[tuple[int, int, int, int]]:
    """(device, address, size, bytes that were asked for) of each block."""
    if not cuda_may_be_asked():
        return
    torch: Any = loaded("torch")
    core, devices = torch._C, range(torch.cuda.device_count())
    try:
        if core._cuda_isHistoryEnabled() or sum(_count(core, index) for index in devices) > _MOST:
            return
        segments = core._cuda_memorySnapshot(None)["segments"]
    except (RuntimeError, TypeError, LookupError, AttributeError):  # another allocator, or an older torch
        return
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                yield segment["device"], address, block["size"], block["requested_size"]
            address += block["size"]


def _count(core: Any, index: int) -> int:
    """Of blocks in use."""
    return int(core._cuda_memoryStats(index)["active"]["all"]["current"])
