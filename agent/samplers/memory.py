"""Samples the memory of this process: what is resident, from /proc, and what torch's allocators have given out.

Called by agent/samplers/sampler_loop.py, on the agent's thread.  Invariant: nothing that the job can see is reset, and
the share of pages that others use too, for which the kernel goes through all of them with the memory map locked, takes
at most a thousandth of the time, and is not asked for where one look would be long; devices that are left alone are not
asked.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter_ns
from typing import Any

from ... import streams
from ..noop import noop
from ..storage.rows import Stream
from ..torch_state import cuda_may_be_asked
from .sampler import FULL

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PSS_SHARE = 1000  # it is read again after so many times as long as it took
_ROLLUP_BYTES = 4096
_MOST_RESIDENT = 16 << 30  # bytes: to go through so many pages takes the kernel a tenth of a second and more


class Memory:
    """sample() on the agent's thread, once a second."""

    name = "memory"

    def __init__(self, samples: Stream, *_: object) -> None:
        self._append = samples.append
        self._pss_due_ns = 0
        self._why_no_pss = self._why_no_devices = ""

    @property
    def state(self) -> str:
        why = "; ".join(filter(None, (self._why_no_pss, self._why_no_devices)))
        return f"on, without {why}" if why else "on"

    def sample(self) -> None:
        """Append one row per counter, all with the same time."""
        now = perf_counter_ns()
        _, resident, shared = (int(each) * _PAGE for each in _read("/proc/self/statm").split()[:3])
        values = {streams.HOST_RSS: resident, streams.HOST_SHARED: shared}
        if now >= self._pss_due_ns and not self._why_no_pss:
            values |= self._pss(now, resident)
        devices = self._devices() if cuda_may_be_asked() else {}
        if (devices or self._why_no_devices) and (pinned := _pinned()) is not None:
            values[streams.HOST_PINNED] = pinned
        for source, counters in {streams.MEMORY: values, **devices}.items():
            for counter, value in counters.items():
                self._append(now, source, counter, value)

    def _pss(self, begun_ns: int, resident: int) -> dict[int, int]:
        if resident > _MOST_RESIDENT:
            self._why_no_pss = f"/proc/self/smaps_rollup: {resident >> 30} GB are resident"
            return {}
        try:
            text = _read("/proc/self/smaps_rollup")
            self._pss_due_ns = begun_ns + _PSS_SHARE * (perf_counter_ns() - begun_ns)
            return {streams.HOST_PSS: int(text.partition(b"\nPss:")[2].split()[0]) << 10}
        except (OSError, LookupError, ValueError) as error:
            if getattr(error, "errno", None) not in FULL:
                self._why_no_pss = f"/proc/self/smaps_rollup: {error!r}"
            return {}

    def _devices(self) -> dict[int, dict[int, int]]:
        try:
            found, self._why_no_devices = _devices(), ""
        except RuntimeError as error:  # the job has an allocator of its own, which does not tell
            first, *_ = str(error).splitlines() or [""]
            found, self._why_no_devices = {}, f"devices: {first}"
        return found

    close = forget = noop


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, _ROLLUP_BYTES)
    finally:
        os.close(file)


def _devices() -> dict[int, dict[int, int]]:
    """What the caching allocator of each device that has memory of it has given out, by source; asks no driver."""
    torch: Any = sys.modules["torch"]
    found = {}
    for index in range(torch.cuda.device_count()):
        told = torch._C._cuda_memoryStats(index)
        if told["reserved_bytes"]["all"]["peak"]:
            found[streams.MEMORY - 1 - index] = {
                streams.DEVICE_ALLOCATED: told["allocated_bytes"]["all"]["current"],
                streams.DEVICE_RESERVED: told["reserved_bytes"]["all"]["current"],
                streams.DEVICE_INACTIVE: told["inactive_split_bytes"]["all"]["current"],
                streams.DEVICE_PEAK: told["allocated_bytes"]["all"]["peak"],
            }
    return found


def _pinned() -> int | None:
    """Host memory that torch has pinned; None in a torch that does not tell."""
    tell = getattr(sys.modules["torch"]._C, "_cuda_hostMemoryStats", None)
    bytes_: dict[str, int] = tell().get("allocated_bytes", {}) if tell is not None else {}
    return bytes_.get("current")
