"""The few calls of torch.cuda and of the driver that the device tap makes.

Used by tap.py and clock.py.  The one invariant: nothing here waits for a device, and nothing makes a
context on a device that the job does not use.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

_DRIVER = "libcuda.so.1"
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class Cuda:
    """What of it is called, looked up once.  Raises LookupError where device times cannot be taken safely."""

    def __init__(self) -> None:
        torch: Any = sys.modules["torch"]
        if torch.version.hip:  # there a query of an event breaks other threads' captures, whatever is done about it
            raise LookupError("not on ROCm")
        self.event = partial(torch.cuda.Event, enable_timing=True)
        self.stream = torch.cuda.current_stream
        self.is_capturing = torch.cuda.is_current_stream_capturing
        self.current_device = torch._C._cuda_getDevice
        self.memory = torch._C._cuda_memoryStats
        self._set_device = torch._C._cuda_setDevice

    def enter(self, index: int) -> None:
        """Before this thread of ours asks or drops events of a device.

        The device first, for a call of CUDA on a thread without one makes a context on device 0.  Then captures of
        graphs on other threads are none of ours: else a query of ours would break one that is under way.
        """
        self._set_device(index)
        ignore_captures()


def ignore_captures() -> None:
    """Have the driver not count what this thread does against captures on other threads; until the thread ends."""
    ctypes: Any = sys.modules["ctypes"]
    mode = ctypes.c_int(_THREAD_LOCAL)
    failed = ctypes.CDLL(_DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if failed:
        raise OSError(f"cuThreadExchangeStreamCaptureMode: CUDA error {failed}")
