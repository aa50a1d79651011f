"""The few calls of torch.cuda and of the driver that take times on a device.

The taps on devices and on collectives make one each once the job uses CUDA.
Invariant: none of them waits for the device, or creates a context on one that the job does not use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

Answer = TypeVar("Answer")

_DRIVER = "libcuda.so.1"
_NOT_READY = 600  # cudaErrorNotReady
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_KNOWN_STREAMS = 256


class Cuda:
    """The functions, looked up once.  Raises LookupError where device times cannot be taken safely."""

    def __init__(self) -> None:
        torch: Any = sys.modules["torch"]
        if torch.version.hip:  # there, querying an event always breaks the captures of other threads
            raise LookupError("not on ROCm")
        self.event = partial(torch.cuda.Event, enable_timing=True)
        self._current_stream, self._stream_key = torch.cuda.current_stream, torch._C._cuda_getCurrentStream
        self._streams: dict[Any, Any] = {}  # by what identifies them: torch would make an object a call
        self.is_capturing = torch.cuda.is_current_stream_capturing
        self.current_device = torch._C._cuda_getDevice
        self.device_count, self.has_context = torch.cuda.device_count, torch._C._cuda_hasPrimaryContext
        self.memory = torch._C._cuda_memoryStats
        self._set_device = torch._C._cuda_setDevice
        self._ctypes: Any = sys.modules["ctypes"]
        self._exchange = self._ctypes.CDLL(_DRIVER).cuThreadExchangeStreamCaptureMode
        self._reached, self._elapsed = _of_runtime(self._ctypes)

    def enter(self, index: int) -> None:
        """Prepare one of the agent's threads to query or drop events of a device.

        The device is set first, because a CUDA call on a thread without one creates a context on device 0.  Then the
        driver ignores the thread's calls, until it ends, for the captures of other threads: otherwise its queries would
        break a capture under way.
        """
        self._set_device(index)
        self._set_mode(self._ctypes.c_int(_THREAD_LOCAL))

    def stream(self, index: int) -> Any:
        """The current one of this thread and device."""
        key = self._stream_key(index)
        found = self._streams.get(key)
        if found is None:
            if len(self._streams) >= _KNOWN_STREAMS:
                self._streams.clear()
            found = self._streams[key] = self._current_stream(index)
        return found

    def reached(self, event: Any) -> bool:
        """Whether the device has come to it.  On the agent's threads, without the GIL where the runtime can be called:
        the driver may have it wait for as long as a kernel of the job runs."""
        return event.query() if self._reached is None else self._reached(event.cuda_event)

    def elapsed_ns(self, first: Any, last: Any) -> int:
        """Of two events that were reached.  Likewise."""
        if self._elapsed is None:
            milliseconds: float = first.elapsed_time(last)
            return round(milliseconds * 1e6)
        return self._elapsed(first.cuda_event, last.cuda_event)

    def aside(self, query: Callable[[], Answer]) -> Answer:
        """What it returns.  On a thread of the job, whose calls break no captures of other threads meanwhile."""
        mode = self._ctypes.c_int(_THREAD_LOCAL)
        self._set_mode(mode)
        try:
            return query()
        finally:
            self._set_mode(mode)

    def _set_mode(self, mode: Any) -> None:
        """mode: a c_int, which gets the one before."""
        if failed := self._exchange(self._ctypes.byref(mode)):
            raise OSError(f"cuThreadExchangeStreamCaptureMode: CUDA error {failed}")


def _of_runtime(ctypes: Any) -> tuple[Callable[[int], bool] | None, Callable[[int, int], int] | None]:
    """reached() and elapsed_ns() of handles, by the CUDA runtime that torch has loaded; (None, None): it is part of
    torch, which does not show it."""
    runtime = ctypes.CDLL(None)  # its functions are called without the GIL
    try:
        query, elapsed, clear = runtime.cudaEventQuery, runtime.cudaEventElapsedTime, runtime.cudaGetLastError
    except AttributeError:
        return None, None
    query.argtypes = [ctypes.c_void_p]
    elapsed.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

    def reached(event: int) -> bool:
        error = query(event)
        if error == _NOT_READY:
            clear()
        elif error:
            raise OSError(f"cudaEventQuery: CUDA error {error}")
        return not error

    def elapsed_ns(first: int, last: int) -> int:
        told = ctypes.c_float()
        if error := elapsed(ctypes.byref(told), first, last):
            raise OSError(f"cudaEventElapsedTime: CUDA error {error}")
        milliseconds: float = told.value
        return round(milliseconds * 1e6)

    return reached, elapsed_ns
