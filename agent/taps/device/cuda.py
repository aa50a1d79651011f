"""The few calls of torch.cuda and of the driver that the device tap makes.

tap.py and clock.py use them.
Invariant: nothing here waits for a device, and nothing creates a context on a device that the job does not use.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

_DRIVER = "libcuda.so.1"
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class Cuda:
    """The functions, looked up once.  Raises LookupError where device times cannot be taken safely."""

    def __init__(self) -> None:
        torch: Any = sys.modules["torch"]
        if torch.version.hip:  # there, querying an event always breaks the captures of other threads
            raise LookupError("not on ROCm")
        self.event = partial(torch.cuda.Event, enable_timing=True)
        self.stream = torch.cuda.current_stream
        self.is_capturing = torch.cuda.is_current_stream_capturing
        self.current_device = torch._C._cuda_getDevice
        self.memory = torch._C._cuda_memoryStats
        self._set_device = torch._C._cuda_setDevice

    def enter(self, index: int) -> None:
        """Prepare one of the agent's threads to query or drop events of a device.

        The device is set first, because a CUDA call on a thread without one creates a context on device 0.  Then the
        thread ignores graph captures on other threads: otherwise its queries would break a capture under way.
        """
        self._set_device(index)
        ignore_captures()


def ignore_captures() -> None:
    """Until this thread ends, make the driver ignore its calls for the captures of other threads."""
    ctypes: Any = sys.modules["ctypes"]
    mode = ctypes.c_int(_THREAD_LOCAL)
    failed = ctypes.CDLL(_DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if failed:
        raise OSError(f"cuThreadExchangeStreamCaptureMode: CUDA error {failed}")
