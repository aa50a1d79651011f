"""Samples counters of the devices that this process uses, or can see, read from NVML through nvidia-ml-py.

Called by agent/samplers/sampler_loop.py, on the agent's thread.  No call here blocks that thread for long: the driver
takes 20 ms to measure PCIe throughput, for example, so PCIe traffic comes only from drivers that have counters for it.
Once the job uses CUDA, its other devices are left to those ranks that use them.
Invariant: a counter that a device does not support is requested once, and a lost device does not affect the others.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from time import perf_counter_ns
from typing import Any

from ... import streams
from ..storage.log import Log
from ..storage.rows import Stream
from .sampler import Absent
from .visible_devices import handles_of, text, used_devices, visible_devices

_LIBRARY = "libnvidia-ml.so.1"
# The only name of the module in the target: whether and what the job itself imports as pynvml stays untouched.
_PRIVATE_NAME = "_probe_agent.pynvml"
_ALL_LINKS = 0xFFFFFFFF  # NVML's scope of a field for the sum over all NVLinks
# Errors after which a counter is requested no more, and those that tell that the device is gone.
_PERMANENT = "NOT_SUPPORTED", "NO_PERMISSION", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND"
_LOST = "GPU_IS_LOST", "RESET_REQUIRED", "NOT_FOUND", "UNINITIALIZED", "DRIVER_NOT_LOADED"
_SLOT_LIMIT = 1 << 63  # NVML marks "not available" by setting all bits, a value that does not fit into a slot

Counters = Iterable[tuple[int, int]]  # (counter, value) ...
Reading = Callable[[Any, Any], Counters]  # (nvml, handle) -> counters


class Gpu:
    """sample() on the agent's thread, once a second.  Raises Absent where there is no device to sample."""

    name = "gpu"

    def __init__(
        self, samples: Stream, log: Log, pynvml_path: str | None, load: Callable[[str | None], Any] | None = None
    ) -> None:
        self._samples, self._log = samples, log
        self._used: list[int] = []  # as torch numbers them
        self._nvml = (load or pynvml_at)(pynvml_path)
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise Absent(f"NVML does not start: {error}") from None
        try:
            handles = list(enumerate(visible_devices(self._nvml)))
            self._devices = [_Device(self._nvml, *each).told(log) for each in handles if each[1] is not None]
            if not self._devices:
                raise Absent("no device is visible to this process")
        except Exception:
            self.close()
            raise

    @property
    def state(self) -> str:
        lost = ", ".join(f"cuda:{device.index} ({device.why_off})" for device in self._devices if device.why_off)
        return f"on, but off for {lost}" if lost else "on"

    def sample(self) -> None:
        if (used := used_devices()) != self._used:
            self._used = used
            with contextlib.suppress(AttributeError):  # an older torch: the visible ones, as before
                self._follow(handles_of(self._nvml, used))
        for device in self._devices:
            if not device.why_off:
                device.sample(self._samples)

    def _follow(self, handles: dict[int, Any]) -> None:
        """Sample these from here on.  One that was sampled under the same number goes on."""
        known = {(device.index, device.uuid): device for device in self._devices}
        devices = [_Device(self._nvml, index, handle) for index, handle in handles.items()]
        if devices:
            self._devices = [known.get((each.index, each.uuid)) or each.told(self._log) for each in devices]

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # the driver may be gone
            self._nvml.nvmlShutdown()
        self.forget()

    def forget(self) -> None:
        self._devices = []


class _Device:
    """One device, and the readings that it supports."""

    _source: int

    def __init__(self, nvml: Any, index: int, handle: Any) -> None:
        self._nvml, self.index, self._handle = nvml, index, handle
        self.uuid = text(nvml, nvml.nvmlDeviceGetUUID, handle)
        self._readings: list[Reading] = list(_READINGS)
        self.why_off = ""
        self._permanent_errors, self._lost_errors = (
            [getattr(nvml, f"NVML_ERROR_{name}") for name in names] for names in (_PERMANENT, _LOST)
        )

    def told(self, log: Log) -> _Device:
        """Itself; its samples refer to what the log says of it."""
        self._source = log.next_id()
        name = text(self._nvml, self._nvml.nvmlDeviceGetName, self._handle)
        log.put(streams.LOG_DEVICE, self._source, {"index": self.index, "uuid": self.uuid, "name": name})
        return self

    def sample(self, samples: Stream) -> None:
        """Append one row per counter, all with the same time.  A transient failure leaves its counters out."""
        now = perf_counter_ns()
        for read in list(self._readings):
            try:
                for counter, value in read(self._nvml, self._handle):
                    if 0 <= value < _SLOT_LIMIT:
                        samples.append(now, self._source, counter, value)
            except self._nvml.NVMLError as error:
                if error.value in self._lost_errors:
                    self.why_off = str(error)
                    return
                if error.value in self._permanent_errors:
                    self._readings.remove(read)
            except AttributeError:  # this nvidia-ml-py is older than the call
                self._readings.remove(read)


def _utilization(nvml: Any, handle: Any) -> Counters:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return [(streams.GPU_UTIL_PCT, rates.gpu), (streams.GPU_MEMORY_UTIL_PCT, rates.memory)]


def _memory(nvml: Any, handle: Any) -> Counters:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return [(streams.GPU_MEMORY_USED_BYTES, memory.used), (streams.GPU_MEMORY_BYTES, memory.total)]


def _uncorrected_ecc_errors(nvml: Any, handle: Any) -> Counters:
    kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return [(streams.GPU_ECC_ERRORS, nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds))]


def _links(nvml: Any, handle: Any) -> Counters:
    """PCIe and NVLink traffic in one call; each field has a status of its own."""
    fields = {
        (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0): streams.GPU_PCIE_RX_BYTES,
        (nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0): streams.GPU_PCIE_TX_BYTES,
        (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS): streams.GPU_NVLINK_RX_KB,
        (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS): streams.GPU_NVLINK_TX_KB,
    }
    found = list(nvml.nvmlDeviceGetFieldValues(handle, list(fields)))
    for counter, field in zip(fields.values(), found, strict=True):
        if field.nvmlReturn == nvml.NVML_SUCCESS:
            is_64_bit = field.valueType != nvml.NVML_VALUE_TYPE_UNSIGNED_INT
            yield counter, field.value.ullVal if is_64_bit else field.value.uiVal
    if all(field.nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED for field in found):
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)


_READINGS: tuple[Reading, ...] = (
    _utilization,
    _memory,
    lambda nvml, gpu: [(streams.GPU_POWER_MW, nvml.nvmlDeviceGetPowerUsage(gpu))],
    lambda nvml, gpu: [(streams.GPU_POWER_LIMIT_MW, nvml.nvmlDeviceGetEnforcedPowerLimit(gpu))],
    lambda nvml, gpu: [
        (streams.GPU_TEMPERATURE_CELSIUS, nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))
    ],
    lambda nvml, gpu: [(streams.GPU_SM_CLOCK_MHZ, nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))],
    lambda nvml, gpu: [(streams.GPU_MEMORY_CLOCK_MHZ, nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM))],
    lambda nvml, gpu: [(streams.GPU_THROTTLE_REASONS, nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))],
    _uncorrected_ecc_errors,
    _links,
)


def pynvml_at(path: str | None) -> Any:
    """nvidia-ml-py from the command's packages, whose version is known, else from the process's own."""
    if not has_library():
        raise Absent("no NVML library")
    found = PathFinder.find_spec("pynvml", [*([path] if path else []), *sys.path])
    spec = spec_from_file_location(_PRIVATE_NAME, found.origin) if found is not None and found.origin else None
    if spec is None or spec.loader is None:
        raise Absent("neither this process nor the command that attached has nvidia-ml-py")
    module = sys.modules[_PRIVATE_NAME] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@lru_cache(maxsize=1)  # each CDLL makes a class of its own, a reference cycle; the process's next agent reuses this one
def has_library() -> bool:
    """Checked first: importing nvidia-ml-py takes some ten milliseconds, useless where there is no driver."""
    try:
        import ctypes

        ctypes.CDLL(_LIBRARY)
    except (ImportError, OSError):
        return False
    return True
