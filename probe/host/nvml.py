"""The devices of this machine as NVML sees them, which makes no CUDA context and allocates nothing on a device.

Called by probe.attach.doctor_gpu.  Invariant: nvidia-ml-py is imported only here, when asked; what NVML does not say
is None.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .processes import namespace

_FIRST_PIDS = "pid:[4026531836]"  # the kernel's PROC_PID_INIT_INO: the namespace whose pids a driver knows


@dataclass(frozen=True)
class Device:
    """Its place is NVML's number of it.  mig: on, off or not supported; pids: who has a compute context on it."""

    name: str | None
    uuid: str | None
    memory_bytes: tuple[int, int] | None  # used, total
    mig: str | None
    pids: tuple[int, ...] | None


@dataclass(frozen=True)
class Nvml:
    """why_not: why there are no devices, "" if NVML has started."""

    driver: str | None = None
    devices: tuple[Device, ...] = ()
    why_not: str = ""


def read_nvml() -> Nvml:
    """Starts NVML, asks, and ends it again."""
    try:
        import pynvml
    except ImportError:
        return Nvml(why_not="nvidia-ml-py is not installed beside this command")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        is_absent = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return Nvml(why_not="no NVML library" if is_absent else f"NVML does not start: {error}")
    try:
        driver = _text(_asked(pynvml, pynvml.nvmlSystemGetDriverVersion))
        if (count := _asked(pynvml, pynvml.nvmlDeviceGetCount)) is None:
            return Nvml(driver, why_not="NVML does not say how many devices there are")
        return Nvml(driver, tuple(_device(pynvml, index) for index in range(count)))
    finally:
        with contextlib.suppress(pynvml.NVMLError):  # the driver may be gone
            pynvml.nvmlShutdown()


def knows_our_pids() -> bool:
    """Whether pids of NVML are ours.  In a container, they may be the host's."""
    return namespace(os.getpid(), "pid") == _FIRST_PIDS


def _device(nvml: Any, index: int) -> Device:
    handle = _asked(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return Device(None, None, None, None, None)
    memory = _asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    running = _asked(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return Device(
        _text(_asked(nvml, nvml.nvmlDeviceGetName, handle)),
        _text(_asked(nvml, nvml.nvmlDeviceGetUUID, handle)),
        None if memory is None else (memory.used, memory.total),
        _mig(nvml, handle),
        None if running is None else tuple(sorted({int(each.pid) for each in running})),
    )


def _mig(nvml: Any, handle: Any) -> str | None:
    try:
        return "on" if nvml.nvmlDeviceGetMigMode(handle)[0] else "off"
    except nvml.NVMLError as error:
        return "not supported" if error.value == nvml.NVML_ERROR_NOT_SUPPORTED else None


def _asked(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns; None if NVML does not say, or its driver is older than the call."""
    try:
        return call(*arguments)
    except (nvml.NVMLError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)):
        return None


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value  # bytes: older nvidia-ml-py
