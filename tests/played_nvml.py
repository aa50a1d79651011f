"""A driver's devices without a driver: the calls and constants of nvidia-ml-py that we use.

`module_text` is the same as a file that stands for pynvml.py in a target.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, TIMEOUT, LOST = 3, 4, 10, 15


class NVMLLibraryMismatchError(Exception):
    """A function of the library is missing: nvidia-ml-py is newer than the driver."""


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({LOST: "GPU is lost", NOT_SUPPORTED: "Not Supported"}.get(value, f"error {value}"))
        self.value = value


class Nvml:
    """A driver with some devices.  broken: (device, call) -> error; a handle is a device's name."""

    NVMLError, NVMLLibraryMismatchError = NVMLError, NVMLLibraryMismatchError
    NVML_SUCCESS, NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 0, 1, 2
    NVML_ERROR_UNINITIALIZED, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED = 1, 2, NOT_SUPPORTED
    NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = NO_PERMISSION, 6, 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = 13, LOST, 16
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, NVML_VALUE_TYPE_UNSIGNED_INT = 1, 0, 1
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES, NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 198, 197
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 139, 138

    def __init__(self, *devices: str, instances: dict[str, list[str]] | None = None) -> None:
        self.devices, self.instances = devices, instances or {}
        self.broken: dict[tuple[str, str], int] = {}
        self.fields_without: set[int] = set()
        self.asked: list[tuple[str, str]] = []
        self.computing: dict[str, list[int]] = {}
        self.inits = 0
        self.is_older = False  # than nvidia-ml-py

    def _ask(self, device: str, call: str) -> None:
        self.asked.append((device, call))
        for key in ((device, call), (device, "*"), ("*", call)):
            if key in self.broken:
                raise NVMLError(self.broken[key])

    def nvmlInit(self) -> None:
        self._ask("*", "init")
        self.inits += 1

    def nvmlShutdown(self) -> None:
        self.inits -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self._ask(self.devices[index], "handle")
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        every = [name for names in self.instances.values() for name in names]
        whole = {self.nvmlDeviceGetUUID(device): device for device in self.devices}
        if uuid not in whole and uuid not in every:
            raise NVMLError(6)
        return whole.get(uuid, uuid)

    def nvmlDeviceGetUUID(self, device: str) -> str:
        return device if device.startswith("MIG-") else f"GPU-{device}-1234"

    def nvmlDeviceGetName(self, device: str) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMigMode(self, device: str) -> list[int]:
        if device not in self.instances:
            raise NVMLError(NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: str, index: int) -> str:
        if index == 0 or index > len(self.instances[device]):  # instances may lie anywhere
            raise NVMLError(6)
        return self.instances[device][index - 1]

    def nvmlSystemGetDriverVersion(self) -> str:
        self._ask("*", "driver")
        return "570.86.15"

    def nvmlDeviceGetComputeRunningProcesses(self, device: str) -> list[Any]:
        if self.is_older:
            raise NVMLLibraryMismatchError
        self._ask(device, "processes")
        return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in self.computing.get(device, ())]

    def nvmlDeviceGetUtilizationRates(self, device: str) -> Any:
        self._ask(device, "utilization")
        return SimpleNamespace(gpu=97, memory=31)

    def nvmlDeviceGetMemoryInfo(self, device: str) -> Any:
        self._ask(device, "memory")
        return SimpleNamespace(used=5 << 30, total=80 << 30, free=75 << 30)

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:
        self._ask(device, "power")
        return 412_345

    def nvmlDeviceGetEnforcedPowerLimit(self, device: str) -> int:
        self._ask(device, "limit")
        return 700_000

    def nvmlDeviceGetTemperature(self, device: str, sensor: int) -> int:
        self._ask(device, "temperature")
        return 61

    def nvmlDeviceGetClockInfo(self, device: str, clock: int) -> int:
        self._ask(device, f"clock {clock}")
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[clock]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: str) -> int:
        self._ask(device, "throttle")
        return 0x4

    def nvmlDeviceGetTotalEccErrors(self, device: str, kind: int, counter: int) -> int:
        self._ask(device, "ecc")
        return 2

    def nvmlDeviceGetFieldValues(self, device: str, fields: list[tuple[int, int]]) -> list[Any]:
        self._ask(device, "fields")
        narrow = SimpleNamespace(uiVal=1000, ullVal=-1)
        wide = SimpleNamespace(uiVal=0, ullVal=5 << 40)
        return [
            SimpleNamespace(
                nvmlReturn=NOT_SUPPORTED if field in self.fields_without else 0,
                valueType=1 if field in (197, 198) else 3,
                value=narrow if field in (197, 198) else wide,
            )
            for field, scope in fields
            if scope == (0 if field in (197, 198) else 0xFFFFFFFF)
        ]


def module_text(*devices: str) -> str:
    """This file, with the calls of these devices as its functions."""
    with open(__file__, encoding="utf-8") as file:
        return file.read() + (
            f"\n\nnvml = Nvml(*{devices!r})\n"
            "globals().update({name: getattr(nvml, name) for name in dir(nvml) if name.startswith(('nvml', 'NVML'))})\n"
        )
