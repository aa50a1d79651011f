"""host.gpu_trace: one row per device and second: what NVML reports about the devices that the process uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ... import streams
from ...arrays.arrow import coded
from ...derive.partition import Partition
from ...derive.samples import Samples, Values, common
from ...schema import COMMON, Column, Columns
from ...streams import SAMPLES
from ..declaration import DONE, Table

_MB = 1 << 20

# bits of nvmlClocksThrottleReasons, by their names there
REASONS = {
    0x001: "gpu_idle", 0x002: "applications_clocks_setting", 0x004: "sw_power_cap", 0x008: "hw_slowdown",
    0x010: "sync_boost", 0x020: "sw_thermal_slowdown", 0x040: "hw_thermal_slowdown", 0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}  # fmt: skip

# column -> (counter, whether the column is how fast it grows, column's unit / counter's unit)
_NUMBERS: dict[str, tuple[int, bool, float]] = {
    "gpu_util_pct": (streams.GPU_UTIL_PCT, False, 1),
    "memory_util_pct": (streams.GPU_MEMORY_UTIL_PCT, False, 1),
    "memory_used_mb": (streams.GPU_MEMORY_USED_BYTES, False, 1 / _MB),
    "memory_total_mb": (streams.GPU_MEMORY_BYTES, False, 1 / _MB),
    "power_w": (streams.GPU_POWER_MW, False, 1e-3),
    "power_limit_w": (streams.GPU_POWER_LIMIT_MW, False, 1e-3),
    "temperature_celsius": (streams.GPU_TEMPERATURE_CELSIUS, False, 1),
    "sm_clock_mhz": (streams.GPU_SM_CLOCK_MHZ, False, 1),
    "memory_clock_mhz": (streams.GPU_MEMORY_CLOCK_MHZ, False, 1),
    "pcie_rx_mb_s": (streams.GPU_PCIE_RX_BYTES, True, 1 / _MB),
    "pcie_tx_mb_s": (streams.GPU_PCIE_TX_BYTES, True, 1 / _MB),
    "nvlink_rx_mb_s": (streams.GPU_NVLINK_RX_KB, True, 1 / 1024),
    "nvlink_tx_mb_s": (streams.GPU_NVLINK_TX_KB, True, 1 / 1024),
    "ecc_errors": (streams.GPU_ECC_ERRORS, False, 1),
}


def derive(part: Partition) -> Columns:
    """Device after device, each by time."""
    devices = _Devices(part)
    return {
        **common(part, devices.times),
        "device": lambda: coded(devices.sources, devices.names("index", "cuda:{}")),
        "uuid": lambda: coded(devices.sources, devices.names("uuid", "{}")),
        "name": lambda: coded(devices.sources, devices.names("name", "{}")),
        "throttle_reasons": lambda: _reasons(devices.values(lambda one: one.level(streams.GPU_THROTTLE_REASONS))),
        **{name: _number(devices, *how) for name, how in _NUMBERS.items()},
    }


class _Devices:
    """The samples of every device of one rank, one after the other."""

    def __init__(self, part: Partition) -> None:
        self._known = part.log.devices
        self._samples = {source: Samples(part, source) for source in sorted(self._known)}
        empty = np.zeros(0, np.int64)
        every = [(source, samples.times) for source, samples in self._samples.items()]
        self.times = np.concatenate([empty, *(times for _, times in every)])
        self.sources = np.concatenate([empty, *(np.full(len(times), source) for source, times in every)])

    def names(self, what: str, form: str) -> dict[int, str]:
        said = {source: device.get(what) for source, device in self._known.items()}
        return {source: form.format(value) for source, value in said.items() if value is not None}

    def values(self, of: Callable[[Samples], Values]) -> Values:
        each = [of(samples) for samples in self._samples.values()]
        empty = np.zeros(0, np.int64)
        return Values(
            np.concatenate([empty, *(values.numbers for values in each)]),
            np.concatenate([np.zeros(0, np.bool_), *(values.valid for values in each)]),
        )


def _number(devices: _Devices, counter: int, grows: bool, factor: float) -> Callable[[], Any]:
    def read(samples: Samples) -> Values:
        return samples.rate(counter) if grows else samples.level(counter)

    return lambda: (devices.values(read) * factor).arrow()


def _reasons(masks: Values) -> Any:
    known, inverse = np.unique(masks.numbers, return_inverse=True)
    lists = [[name for bit, name in REASONS.items() if mask & bit] for mask in known.tolist()]
    place = pa.array(inverse.reshape(-1), pa.int64(), mask=~masks.valid)
    return pa.array(lists, pa.list_(pa.string())).take(place)


_NOT = "The device does not report it."
_FIRST = "The first second; the device or its driver has no such counter."


def _column(name: str, type: str, unit: str, doc: str, source: str, null: str = _NOT) -> Column:
    return Column(name, type, unit, doc, f"NVML: {source}", null)


TABLE = Table(
    name="host.gpu_trace",
    doc="One row per rank, device on which the rank has a context, and second, as soon as it is sampled.  Before the "
    "job uses CUDA, and in a torch before 2.4, a rank has rows for every device that is visible to it.  Ranks that use "
    "the same device each have rows for it; uuid tells that it is the same.",
    columns=(
        *COMMON,
        Column("device", "VARCHAR", "", "The device as the process numbers it; before it uses CUDA, on a host with "
               "different kinds of devices, that is certain only with CUDA_DEVICE_ORDER=PCI_BUS_ID.",
               "torch; before, CUDA_VISIBLE_DEVICES",
               joins="device of python.torch_trace of the same rank"),
        _column("uuid", "VARCHAR", "", "UUID of the device, the same for every process.", "UUID"),
        _column("name", "VARCHAR", "", "Model of the device.", "Name"),
        _column("gpu_util_pct", "DOUBLE", "%", "Share of time in which a kernel ran.", "UtilizationRates"),
        _column("memory_util_pct", "DOUBLE", "%", "Share of time in which its memory was busy.", "UtilizationRates"),
        _column("memory_used_mb", "DOUBLE", "MB", "Memory in use by all processes (2^20 bytes).", "MemoryInfo"),
        _column("memory_total_mb", "DOUBLE", "MB", "Total memory (2^20 bytes).", "MemoryInfo"),
        _column("power_w", "DOUBLE", "W", "Power drawn.", "PowerUsage"),
        _column("power_limit_w", "DOUBLE", "W", "Power limit.", "EnforcedPowerLimit"),
        _column("temperature_celsius", "DOUBLE", "°C", "Temperature of the chip.", "Temperature"),
        _column("sm_clock_mhz", "DOUBLE", "MHz", "Clock of the multiprocessors.", "ClockInfo"),
        _column("memory_clock_mhz", "DOUBLE", "MHz", "Clock of the memory.", "ClockInfo"),
        _column("throttle_reasons", "VARCHAR[]", "",
                f"What holds its clocks down, out of {', '.join(REASONS.values())}; empty if nothing does.",
                "CurrentClocksThrottleReasons"),
        _column("pcie_rx_mb_s", "DOUBLE", "MB/s", "Received over PCIe.", "PCIE_COUNT_RX_BYTES", _FIRST),
        _column("pcie_tx_mb_s", "DOUBLE", "MB/s", "Sent over PCIe.", "PCIE_COUNT_TX_BYTES", _FIRST),
        _column("nvlink_rx_mb_s", "DOUBLE", "MB/s", "Received over NVLink.", "NVLINK_THROUGHPUT_DATA_RX", _FIRST),
        _column("nvlink_tx_mb_s", "DOUBLE", "MB/s", "Sent over NVLink.", "NVLINK_THROUGHPUT_DATA_TX", _FIRST),
        _column("ecc_errors", "BIGINT", "", "Uncorrectable memory errors since the driver was loaded.",
                "TotalEccErrors"),
    ),
    streams=(SAMPLES,),
    derive=derive,
    of_each_rank=True,
    final=DONE,
    taps=("gpu",),
    question="How busy is each device, and how full is its memory?",
    example="SELECT host, device, AVG(gpu_util_pct) AS util, MAX(memory_used_mb) AS used, MAX(power_w) AS power FROM "
    "host.gpu_trace GROUP BY ALL ORDER BY ALL",
)  # fmt: skip
