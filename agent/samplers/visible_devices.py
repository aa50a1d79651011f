"""The devices of this process in its own numbering: what CUDA_VISIBLE_DEVICES leaves of them, as CUDA reads it.

Called by gpu.py at its start.  The one invariant: place n of the result is cuda:n of the process; a device that cannot
be reached is None there.  Devices count in the order of the PCI bus, as NVML has them: on a host of unequal devices
CUDA keeps to it only with CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

import os
from typing import Any


def visible_devices(nvml: Any) -> list[Any]:
    """A handle each."""
    count = int(nvml.nvmlDeviceGetCount())
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return [_whole(nvml, index) for index in range(count)]
    devices = []
    for word in (word.strip() for word in asked.split(",")):
        if word.startswith("MIG-"):
            devices.append(_reached(nvml, lambda word=word: nvml.nvmlDeviceGetHandleByUUID(word)))
            continue
        index = _of_uuid(nvml, word, count) if word.startswith("GPU-") else _number(word)
        if index is None or index >= count:  # CUDA takes what stands before the first word that names no device
            break
        devices.append(_whole(nvml, index))
    return devices


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else None


def _of_uuid(nvml: Any, start: str, count: int) -> int | None:
    """CUDA takes the beginning of a UUID, as long as it is one device's only."""
    uuids = [_reached(nvml, lambda index=index: _uuid(nvml, index)) or "" for index in range(count)]
    found = [index for index, uuid in enumerate(uuids) if uuid.startswith(start)]
    return found[0] if len(found) == 1 else None


def _uuid(nvml: Any, index: int) -> str:
    uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _whole(nvml: Any, index: int) -> Any:
    """The device, or the first instance of one that is divided: CUDA uses no more than one."""
    handle = _reached(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None or not (_reached(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)) or [0])[0]:
        return handle
    for place in range(_reached(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        instance = _reached(nvml, lambda place=place: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
        if instance is not None:
            return instance
    return handle


def _reached(nvml: Any, ask: Any) -> Any:
    try:
        return ask()
    except nvml.NVMLError:
        return None
