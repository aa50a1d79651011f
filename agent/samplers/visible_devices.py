"""The devices that this process sees, or uses, in its own numbering.

Called by gpu.py.  As long as torch does not use CUDA, devices are those of CUDA_VISIBLE_DEVICES as CUDA reads it,
numbered in PCI bus order, as in NVML; on a host with different kinds of devices, CUDA uses that order only with
CUDA_DEVICE_ORDER=PCI_BUS_ID.  After that, torch says which device is which, by UUID.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..torch_state import cuda_is_in_use


def used_devices() -> list[int]:
    """The devices on which this process has a context, as torch numbers them; none is made."""
    if not cuda_is_in_use():
        return []
    torch = sys.modules["torch"]
    return [index for index in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(index)]


def handles_of(nvml: Any, indices: Iterable[int]) -> dict[int, Any]:
    """NVML handles of devices that torch has these numbers for; those that are not found are left out.

    Raises AttributeError in a torch before 2.4, which does not tell their UUIDs.
    """
    cuda = sys.modules["torch"].cuda
    uuids = {index: cuda.get_device_properties(index).uuid for index in indices}
    found = {
        index: _or_none(nvml, nvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
        or _or_none(nvml, nvml.nvmlDeviceGetHandleByUUID, f"MIG-{uuid}")
        for index, uuid in uuids.items()
    }
    return {index: handle for index, handle in found.items() if handle is not None}


def visible_devices(nvml: Any) -> list[Any]:
    """One NVML handle per device: item n is cuda:n of the process, None if it cannot be reached."""
    count = int(nvml.nvmlDeviceGetCount())
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return [_device_or_instance(nvml, index) for index in range(count)]
    devices = []
    for word in (word.strip() for word in asked.split(",")):
        if word.startswith("MIG-"):
            devices.append(_or_none(nvml, nvml.nvmlDeviceGetHandleByUUID, word))
            continue
        number = int(word) if word.isdecimal() else None
        index = _index_of_uuid(nvml, word, count) if word.startswith("GPU-") else number
        if index is None or index >= count:  # CUDA uses only the entries before the first that names no device
            break
        devices.append(_device_or_instance(nvml, index))
    return devices


def _index_of_uuid(nvml: Any, prefix: str, count: int) -> int | None:
    """CUDA accepts a prefix of a UUID if only one device has it."""
    handles = [_or_none(nvml, nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    uuids = ["" if handle is None else text(nvml, nvml.nvmlDeviceGetUUID, handle) or "" for handle in handles]
    found = [index for index, uuid in enumerate(uuids) if uuid.startswith(prefix)]
    return found[0] if len(found) == 1 else None


def _device_or_instance(nvml: Any, index: int) -> Any:
    """The device, or its first MIG instance if it is partitioned: CUDA uses only one instance."""
    handle = _or_none(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None or not (_or_none(nvml, nvml.nvmlDeviceGetMigMode, handle) or [0])[0]:
        return handle
    for place in range(_or_none(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _or_none(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
        if instance is not None:
            return instance
    return handle


def text(nvml: Any, get: Callable[[Any], Any], handle: Any) -> str | None:
    """What this call says of a device; None if it fails."""
    value = _or_none(nvml, get, handle)
    return value.decode() if isinstance(value, bytes) else value  # bytes: older nvidia-ml-py


def _or_none(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except nvml.NVMLError:
        return None
